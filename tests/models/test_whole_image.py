from __future__ import annotations

import pytest
import torch

from foveate import TensorImage, create_model
from foveate.objectives import LearningRule, learn
from tests.official import assert_close, fill, golden, images


@pytest.mark.parametrize(
    ("file", "name", "classes", "side", "seed"),
    [("imagenet_bagnet77", "bagnet77", 1000, 224, 12), ("cub_en_b0_448", "efficientnet_b0", 200, 448, 17)],
)
def test_predictions_equal_the_official_programs(file: str, name: str, classes: int, side: int, seed: int) -> None:
    wanted = golden(file)
    prediction = fill(create_model(name, num_classes=classes))(images(2, side, seed))
    assert_close(prediction.logits, wanted["logits"])
    assert_close(prediction.walk.levels[0].features[:, 0], wanted["lvl1_features"].reshape(2, -1))


def test_a_walk_of_one_glimpse() -> None:
    model = create_model("whole_image", backbone="test_resnet.r160_in1k", num_classes=5).eval()
    walk = model(torch.randn(2, 3, 60, 90)).walk
    assert walk.weights.tolist() == [[1], [1]]
    assert walk.levels[0].boxes.tolist() == [[[0, 0, 90, 60]]] * 2
    with pytest.raises(ValueError, match="for a model of the whole image"):
        model(torch.randn(1, 3, 60, 90), locations=(1,))


def test_images_keep_their_size_unless_a_base_is_given() -> None:
    seen = []
    for base in (None, 48):
        model = create_model("whole_image", backbone="test_resnet.r160_in1k", base=base, num_classes=5).eval()
        model.network.register_forward_hook(lambda _m, args, _o: seen.append(tuple(args[0].shape)))
        model(torch.randn(2, 3, 60, 90))
    assert seen == [(2, 3, 60, 90), (2, 3, 48, 48)]
    sources = [TensorImage(torch.randn(3, 60, 90)), TensorImage(torch.randn(3, 50, 50))]
    assert model(sources).logits.shape == (2, 5)


def test_wrong_images_are_refused() -> None:
    model = create_model("whole_image", backbone="test_resnet.r160_in1k", in_chans=13, num_classes=5).eval()
    with pytest.raises(ValueError, match="must have 13 channels, got 3"):
        model(torch.randn(1, 3, 64, 64))
    mixed = [TensorImage(torch.randn(13, 60, 90)), TensorImage(torch.randn(13, 50, 50))]
    with pytest.raises(ValueError, match="must agree in channels, height and width"):
        model(mixed)


@pytest.mark.gradients
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_share_of_per_feature_terms_makes_no_difference(share: float) -> None:
    """There is one feature, and its prediction is that of the image."""
    model = create_model("whole_image", backbone="test_resnet.r160_in1k", num_classes=3).train()
    labels = torch.tensor([0, 2])
    prediction = model(torch.randn(2, 3, 64, 64))
    expected = torch.nn.functional.cross_entropy(prediction.logits, labels)
    found = learn(prediction, labels, torch.tensor(0.5), LearningRule(combined=share))
    torch.testing.assert_close(found.loss, expected)
