"""Every published EfficientNet-based model against a second implementation, in double precision.

Goldens of the official programs are at hand for three of the models; this holds the others to the same tables.
"""

from __future__ import annotations

import pytest
import torch

from foveate import create_model
from foveate.checkpoints import tensorflow_names
from foveate.models import Model
from tests.official import assert_close, fill, images
from tests.reference import SCALES, VARIANTS, Official, efficientnet, walk


def doubled(name: str) -> tuple[Model, Official]:
    model = fill(create_model(name, num_classes=20)).double()
    state = model.state_dict()
    return model, Official({official: state[key] for key, official in tensorflow_names(model).items()})


@pytest.mark.parametrize(
    ("name", "size", "locations"),
    [
        ("tnet_fmow", (896, 896), (2, 1)),
        ("tnet_fmow", (301, 517), (3, 2)),
        ("tnet_b0", (301, 517), (2, 2)),
        ("tnet_b1", (448, 448), (3,)),
        ("tnet_b2", (301, 517), (2,)),
        ("tnet_b3", (90, 150), (2,)),
        ("tnet_b4", (448, 448), (2,)),
    ],
)
def test_tnets_agree(name: str, size: tuple[int, int], locations: tuple[int, ...]) -> None:
    model, variables = doubled(name)
    image = images(1, 904, 5)[0, :, : size[0], : size[1]].double().contiguous()
    wanted = walk(variables, image, VARIANTS[name], locations)
    prediction = model(image[None], locations=locations)
    assert [level.cells[0].tolist() for level in prediction.walk.levels[1:]] == wanted.cells
    assert_close(prediction.logits[0], wanted.logits, 1e-6)
    assert_close(prediction.walk.weights[0], wanted.weights, 1e-6)
    features = torch.cat([level.features[0] for level in prediction.walk.levels])
    assert_close(features, wanted.features, 1e-6)
    assert set(variables.variables) - variables.used == {"baseline_var"}


@pytest.mark.parametrize("size", ["b0", "b1", "b2", "b3", "b4"])
def test_baselines_agree(size: str) -> None:
    model, variables = doubled(f"efficientnet_{size}")
    image = images(1, 320, 6)[:, :, :301, :217].double().contiguous()
    vector, _ = efficientnet(variables, image, SCALES[size], (0, 0))
    logits = variables.dense(vector, "feature_extraction/logits_layer/linear")
    prediction = model(image)
    assert_close(prediction.walk.levels[0].features[0, 0], vector, 1e-9)
    assert_close(prediction.logits[0], logits, 1e-9)
    assert set(variables.variables) == variables.used
