from __future__ import annotations

from pathlib import Path

import huggingface_hub.constants
import pytest
import timm
import torch

import foveate
from foveate.creation import open_model


def test_public_names_are_there() -> None:
    for name in foveate.__all__:
        assert getattr(foveate, name) is not None
        assert name in dir(foveate)
    assert set(foveate._HOMES) == set(foveate.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        foveate.nonsense  # noqa: B018


def test_models_are_listed_by_pattern() -> None:
    assert foveate.list_models("tnet*") == sorted(
        ["tnet", "tnet_imagenet", "tnet_fmow", *(f"tnet_b{i}" for i in range(5))]
    )
    assert {"bagnet77", "efficientnet_b0", "efficientnet_b4"} <= set(foveate.list_models())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tnet_b9", {}, "did you mean tnet_b"),
        ("nothing_like_it", {}, "known are bagnet77"),
        ("tnet", {"gird": 5}, "options of tnet must be among .*, got gird"),
        ("tnet", {"backbone": "resnot"}, "must be the name of a timm model, got 'resnot'"),
        ("tnet", {"grid": 30, "cell": 0.1, "base": 32, "backbone": "resnet18"}, "one pixel for each cell"),
    ],
)
def test_what_cannot_be_created_is_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        foveate.create_model(name, **options)


def test_generic_models_take_their_backbones_normalisation() -> None:
    config = foveate.create_model("tnet", backbone="resnet18", num_classes=2).config
    assert config.mean == (0.485, 0.456, 0.406)
    assert foveate.create_model("tnet", backbone="resnet18", in_chans=5, num_classes=2).config.mean == (0.5,)
    assert foveate.create_model("tnet_b0", num_classes=2).config.mean == (0.5,)


def test_pretrained_weights_are_asked_of_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no hub here: what is tested is that timm is asked, for the paper's own weights."""
    asked: list[tuple[str, object]] = []
    original = timm.create_model

    def create(name: str, *, pretrained: bool, **options: object) -> torch.nn.Module:
        asked.append((name, pretrained))
        return original(name, **options)

    monkeypatch.setattr(timm, "create_model", create)
    for size in range(5):
        foveate.create_model(f"tnet_b{size}", num_classes=2, pretrained=True)
    assert asked == [(f"tf_efficientnet_b{size}.ns_jft_in1k", True) for size in range(5)]


def test_no_test_reaches_for_a_hub() -> None:
    assert huggingface_hub.constants.HF_HUB_OFFLINE


def test_open_model_takes_names_and_folders(tmp_path: Path) -> None:
    made = open_model("tnet", backbone="test_resnet.r160_in1k", base=64, num_classes=3)
    foveate.save(made, tmp_path)
    assert open_model(tmp_path).config == made.config
    with pytest.raises(ValueError, match="must be taken as it is, got base"):
        open_model(tmp_path, base=32)
