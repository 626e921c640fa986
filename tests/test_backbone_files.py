"""A backbone's weights from files of others."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file
from torch import Tensor

import foveate
from foveate.backbone_files import convert_backbone
from foveate.weights import BadCheckpointError

NAME = "tf_efficientnet_lite0"


def weights() -> dict[str, Tensor]:
    torch.manual_seed(1)
    return dict(timm.create_model(NAME).state_dict())


def in_the_ports_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Timm's names -> those of efficientnet_pytorch, written down from its source: blocks are counted through."""
    outer = {"conv_stem": "_conv_stem", "bn1": "_bn0", "conv_head": "_conv_head", "bn2": "_bn1", "classifier": "_fc"}
    expanded = {
        "conv_pw": "_expand_conv", "bn1": "_bn0", "conv_dw": "_depthwise_conv", "bn2": "_bn1",
        "se.conv_reduce": "_se_reduce", "se.conv_expand": "_se_expand", "conv_pwl": "_project_conv", "bn3": "_bn2",
    }  # fmt: skip
    plain = {
        "conv_dw": "_depthwise_conv", "bn1": "_bn1", "se.conv_reduce": "_se_reduce", "se.conv_expand": "_se_expand",
        "conv_pw": "_project_conv", "bn2": "_bn2",
    }  # fmt: skip
    places = list(dict.fromkeys(".".join(key.split(".")[:3]) for key in tensors if key.startswith("blocks.")))
    found = {}
    for key, value in tensors.items():
        module, leaf = key.rsplit(".", 1)
        if module.startswith("blocks."):
            place = ".".join(module.split(".")[:3])
            names = expanded if f"{place}.conv_pwl.weight" in tensors else plain
            found[f"_blocks.{places.index(place)}.{names[module.removeprefix(f'{place}.')]}.{leaf}"] = value
        else:
            found[f"{outer[module]}.{leaf}"] = value
    return found


def test_lite0s_names_are_those_that_the_published_file_has() -> None:
    """Some of the names in efficientnet-lite0-57934424.pth, read off the file."""
    ported = in_the_ports_names(dict(timm.create_model("tf_efficientnet_lite0").state_dict()))
    for name, shape in (
        ("_conv_stem.weight", (32, 3, 3, 3)),
        ("_blocks.0._depthwise_conv.weight", (32, 1, 3, 3)),
        ("_blocks.1._expand_conv.weight", (96, 16, 1, 1)),
        ("_blocks.15._bn2.running_var", (320,)),
        ("_fc.weight", (1000, 1280)),
    ):
        assert tuple(ported[name].shape) == shape


@pytest.mark.parametrize("ported", [True, False])
def test_a_backbone_is_converted_and_trained_from(ported: bool, tmp_path: Path) -> None:
    tensors = weights()
    names = in_the_ports_names(tensors)
    if ported:
        assert len(names) == len(tensors)
        assert all(name.startswith("_") for name in names)
    torch.save(names if ported else tensors, tmp_path / "weights.pth")
    output = tmp_path / "new" / "weights.safetensors"
    count = convert_backbone(tmp_path / "weights.pth", NAME, output)
    assert count == sum(value.numel() for value in tensors.values() if value.is_floating_point())
    found = load_file(output)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], value) for name, value in tensors.items())
    model = foveate.create_model("whole_image", backbone=NAME, num_classes=3, checkpoint_path=output)
    inner = model.network.state_dict()  # type: ignore[union-attr]
    assert all(torch.equal(value, tensors[name]) for name, value in inner.items())


def test_the_file_can_be_read_by_whom_the_folder_lets(tmp_path: Path) -> None:
    """The library that writes it would make it the owner's alone."""
    torch.save(weights(), tmp_path / "weights.pth")
    convert_backbone(tmp_path / "weights.pth", NAME, tmp_path / "weights.safetensors")
    (tmp_path / "other").touch()
    assert (tmp_path / "weights.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    tensors = weights()
    del tensors["conv_stem.weight"]
    torch.save(tensors | {"extra.weight": torch.zeros(1)}, tmp_path / "weights.pth")
    with pytest.raises(BadCheckpointError, match=r"1 missing: conv_stem\.weight; 1 unexpected: extra\.weight"):
        convert_backbone(tmp_path / "weights.pth", NAME, tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


class Program:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("this ran",)


def test_a_program_in_a_file_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"conv_stem.weight": Program()}, tmp_path / "weights.pth")
    with pytest.raises(BadCheckpointError, match="must hold tensors alone, got what torch refuses"):
        convert_backbone(tmp_path / "weights.pth", NAME, tmp_path / "out.safetensors")
    assert capsys.readouterr().out == ""


def test_files_must_be_what_they_are_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="got no file"):
        convert_backbone(tmp_path / "nowhere.pth", NAME, tmp_path / "out.safetensors")
    (tmp_path / "weights.pth").write_bytes(b"no weights")
    with pytest.raises(ValueError, match=r"output must be a \.safetensors file"):
        convert_backbone(tmp_path / "weights.pth", NAME, tmp_path / "folder")
    with pytest.raises(BadCheckpointError, match="must hold tensors alone"):
        convert_backbone(tmp_path / "weights.pth", NAME, tmp_path / "out.safetensors")
