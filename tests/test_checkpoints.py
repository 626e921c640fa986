from __future__ import annotations

import json
import pickle
import stat
from pathlib import Path

import pytest
import safetensors.torch
import torch

import foveate
from foveate.checkpoints import load_weights, tensorflow_names
from foveate.models import PRESETS, TNet, WholeImage
from foveate.weights import BadCheckpointError
from tests.official import assert_close, fill, golden, images

WHOLE = {"backbone": "test_resnet.r160_in1k", "num_classes": 3, "mean": (0.5,), "std": (0.5,)}
TINY = {"backbone": "test_resnet.r160_in1k", "base": 64, "num_classes": 3}


def test_the_official_checkpoint_gives_the_official_output(checkpoint: Path, tmp_path: Path) -> None:
    model = foveate.from_tensorflow(checkpoint, "tnet_b0", num_classes=200)
    wanted, batch = golden("cub_tnet_b0_5loc")["logits"], images(2, 448, 15)
    assert not model.training
    assert model.reward_baseline.item() == 0.4375
    assert_close(model(batch, locations=(5,)).logits, wanted)
    foveate.save(model, tmp_path / "model")
    assert_close(foveate.load(tmp_path / "model")(batch, locations=(5,)).logits, wanted)


def test_conversion_gives_exactly_the_values_that_were_trained(checkpoint: Path) -> None:
    converted = foveate.from_tensorflow(checkpoint, "tnet_b0", num_classes=200).state_dict()
    made = fill(foveate.create_model("tnet_b0", num_classes=200)).state_dict()
    assert all(torch.equal(value, made[name]) for name, value in converted.items())


def test_what_does_not_fit_is_named(checkpoint: Path) -> None:
    with pytest.raises(BadCheckpointError) as caught:
        foveate.from_tensorflow(checkpoint, "tnet_fmow", num_classes=62)
    message = str(caught.value)
    assert "6 unexpected: " in message
    assert "feat_weighting/se/dense_1/kernel" in message
    assert "feature_extraction/logits_layer/linear/kernel (1280, 200) instead of (1280, 62)" in message
    with pytest.raises(BadCheckpointError, match=r"missing: .*part3_block3/expand/conv2d/kernel"):
        foveate.from_tensorflow(checkpoint, "tnet_b1", num_classes=200)
    with pytest.raises(ValueError, match="model must be one of tnet_imagenet, tnet_fmow"):
        foveate.from_tensorflow(checkpoint, "tnet_b9", num_classes=200)


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in ("tnet", "whole_image")])
def test_every_published_model_has_official_names(name: str) -> None:
    names = tensorflow_names(foveate.create_model(name, num_classes=7))
    assert len(set(names.values())) == len(names)
    assert "feature_extraction/logits_layer/linear/kernel" in names.values()


def test_the_published_numbers_of_variables() -> None:
    """The reference lists every variable of these three."""
    for name, count in (("tnet_imagenet", 121), ("tnet_fmow", 328), ("tnet_b0", 334)):
        assert len(tensorflow_names(foveate.create_model(name, num_classes=7))) == count


def test_a_model_that_was_never_published_has_no_official_names(checkpoint: Path) -> None:
    model = foveate.create_model("tnet", **TINY)
    with pytest.raises(ValueError, match="must be one that was published in TensorFlow, got tnet"):
        load_weights(model, checkpoint)
    with pytest.raises(ValueError, match="model must be one of tnet_imagenet"):
        foveate.from_tensorflow(checkpoint, "tnet", num_classes=200)


def test_class_orders_are_kept(checkpoint: Path, tmp_path: Path) -> None:
    model = foveate.from_tensorflow(
        checkpoint, "tnet_b0", num_classes=200, class_names=[f"bird {i}" for i in range(200)]
    )
    foveate.save(model, tmp_path)
    loaded = foveate.load(tmp_path)
    assert loaded.config == model.config
    assert loaded.config.class_names[42] == "bird 42"
    assert "minus 1" in loaded.config.class_order


@pytest.mark.parametrize(
    "model",
    [
        ("tnet", TINY | {"in_chans": 5, "grid": (2, 3), "cell": 0.4}),
        ("whole_image", TINY | {"dropout": 0.5}),
        ("tnet_imagenet", {"num_classes": 3}),
    ],
)
def test_saved_models_come_back_the_same(model: tuple[str, dict[str, object]], tmp_path: Path) -> None:
    name, options = model
    made = foveate.create_model(name, **options).eval()
    foveate.save(made, tmp_path / "a" / "b")
    loaded = foveate.load(tmp_path / "a" / "b")
    assert loaded.config == made.config
    assert not loaded.training
    x = torch.randn(1, made.config.in_chans, 90, 100)
    assert torch.equal(loaded(x).logits, made(x).logits)
    files = sorted(path.name for path in (tmp_path / "a" / "b").iterdir())
    assert files == ["config.json", "model.safetensors"]
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a" / "b").iterdir()}
    assert len(modes) == 1


@pytest.mark.parametrize(("name", "kind"), [("tnet", TNet), ("whole_image", WholeImage)])
def test_the_hubs_own_methods_read_and_write_the_same_files(
    name: str, kind: type[TNet] | type[WholeImage], tmp_path: Path
) -> None:
    made = foveate.create_model(name, **TINY).eval()
    x = torch.randn(1, 3, 90, 100)
    made.save_pretrained(tmp_path / "hub")
    assert torch.equal(foveate.load(tmp_path / "hub")(x).logits, made(x).logits)
    foveate.save(made, tmp_path / "ours")
    again = kind.from_pretrained(tmp_path / "ours")
    assert torch.equal(again(x).logits, made(x).logits)
    assert again.config == made.config
    assert hasattr(again, "push_to_hub")


@pytest.mark.parametrize(("name", "kind"), [("tnet", TNet), ("whole_image", WholeImage)])
def test_the_hubs_own_methods_are_strict_and_never_unpickle(
    name: str, kind: type[TNet] | type[WholeImage], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foveate.save(foveate.create_model(name, **TINY), tmp_path)
    kind.from_pretrained(tmp_path)
    assert capsys.readouterr().out == ""
    with pytest.raises(ValueError, match="strict must be True"):
        kind.from_pretrained(tmp_path, strict=False)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    del tensors["classifier.1.weight"]
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(BadCheckpointError, match=r"1 missing: classifier\.1\.weight"):
        kind.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match="weights must be in"):
        kind.from_pretrained(tmp_path)


def test_a_save_that_fails_leaves_the_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (foveate.create_model("tnet", **TINY).eval() for _ in range(2))
    foveate.save(old, tmp_path)

    def full(*_args: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(foveate.weights, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        foveate.save(new, tmp_path)
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(foveate.load(tmp_path)(x).logits, old(x).logits)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_damaged_folders_are_refused_in_one_sentence(tmp_path: Path) -> None:
    foveate.save(foveate.create_model("tnet", **TINY), tmp_path)
    weights, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    whole, values = weights.read_bytes(), json.loads(config.read_text())
    weights.write_bytes(whole[:1000])
    with pytest.raises(BadCheckpointError, match="must be a safetensors file"):
        foveate.load(tmp_path)
    weights.unlink()
    with pytest.raises(FileNotFoundError, match="weights must be in"):
        foveate.load(tmp_path)
    weights.write_bytes(whole)
    config.write_text(json.dumps(values | {"num_classes": 4}))
    with pytest.raises(BadCheckpointError, match=r"2 mis-shaped: classifier.1.weight \(3, "):
        foveate.load(tmp_path)
    for text, message in (
        ("{", "must be JSON"),
        ("[]", "must hold an object"),
        (
            json.dumps(values | {"architecture": "other"}),
            "architecture must be one of tnet, whole_image, got 'other'",
        ),
        (json.dumps(values | {"gird": 5}), "got also gird"),
        (json.dumps(values | {"grid": None}), "config.json must hold a TNetConfig's values"),
        (json.dumps(values | {"location_map": {"layer": "x"}}), "config.json must hold a TNetConfig's values"),
    ):
        config.write_text(text)
        with pytest.raises(ValueError, match=message):
            foveate.load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"model folder must hold config\.json"):
        foveate.load(tmp_path / "nowhere")


def test_weights_come_from_models_backbones_and_checkpoints(tmp_path: Path, checkpoint: Path) -> None:
    made = foveate.create_model("tnet", **TINY).eval()
    foveate.save(made, tmp_path)
    x = torch.randn(1, 3, 64, 64)
    for path in (tmp_path, tmp_path / "model.safetensors"):
        again = foveate.create_model("tnet", checkpoint_path=path, **TINY).eval()
        assert torch.equal(again(x).logits, made(x).logits)
    backbone = dict(made.backbone.network.state_dict()) | {"fc.weight": torch.zeros(9, 9)}
    safetensors.torch.save_file(backbone, tmp_path / "backbone.safetensors")
    again = foveate.create_model("tnet", checkpoint_path=tmp_path / "backbone.safetensors", **TINY).eval()
    assert torch.equal(again.backbone(x)[0], made.backbone(x)[0])
    birds = foveate.create_model("tnet_b0", num_classes=200, checkpoint_path=checkpoint)
    assert birds.reward_baseline.item() == 0.4375


@pytest.mark.parametrize("bands", [1, 3, 6])
def test_weights_for_colours_serve_any_bands(bands: int, tmp_path: Path) -> None:
    """As timm does with weights that it fetches: of a grey image all see what its colours showed."""
    colours = foveate.create_model("whole_image", **WHOLE)
    safetensors.torch.save_file(colours.network.state_dict(), tmp_path / "backbone.safetensors")
    made = foveate.create_model(
        "whole_image", in_chans=bands, checkpoint_path=tmp_path / "backbone.safetensors", **WHOLE
    )
    grey = torch.randn(1, 1, 64, 64)
    expected = colours.eval()(grey.expand(-1, 3, -1, -1)).walk.levels[0].features
    found = made.eval()(grey.expand(-1, bands, -1, -1)).walk.levels[0].features
    torch.testing.assert_close(found, expected)


def test_pickles_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    path.write_bytes(pickle.dumps({}))
    with pytest.raises(ValueError, match="must not be a pickle"):
        foveate.create_model("tnet", checkpoint_path=path, **TINY)
