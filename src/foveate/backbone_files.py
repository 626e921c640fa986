"""Weights of a backbone from a PyTorch file of others -> safetensors under timm's names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import timm
from timm.models import load_state_dict
from timm.models.efficientnet import EfficientNet
from torch import Tensor, nn

from foveate.weights import BadCheckpointError, load_strictly, write_safetensors

# The names of the first PyTorch port of EfficientNet, which many files have, and timm's.
_OUTER = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
_EXPANDED = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_se_reduce": "se.conv_reduce",
    "_se_expand": "se.conv_expand",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
_PLAIN = {
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn1",
    "_se_reduce": "se.conv_reduce",
    "_se_expand": "se.conv_expand",
    "_project_conv": "conv_pw",
    "_bn2": "bn2",
}


def convert_backbone(path: str | Path, name: str, output: str | Path) -> int:
    """Reads the weights of timm's model ``name`` and writes them to ``output``; tells how many values there are.

    The file is read by torch's restricted reader, which knows tensors and plain containers only. All weights must be
    there, and nothing else; they may bear timm's names or those of the port efficientnet_pytorch.
    """
    path, output = Path(path), Path(output)
    if not path.is_file():
        raise FileNotFoundError(f"weights must be in a file, got no file {path}")
    if output.suffix != ".safetensors":
        raise ValueError(f"output must be a .safetensors file for a backbone's weights, got {output}")
    network = timm.create_model(name)
    load_strictly(network, _in_timms_names(_read(path), network), str(path))
    tensors = {key: value.contiguous() for key, value in network.state_dict().items()}
    output.parent.mkdir(parents=True, exist_ok=True)
    aside = output.with_name(f".{output.name}")
    write_safetensors(tensors, aside, {"format": "pt"})
    aside.replace(output)
    return sum(value.numel() for value in tensors.values() if value.is_floating_point())


def _read(path: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_state_dict(str(path), use_ema=False, weights_only=True)
    except Exception as error:  # a damaged file can fail in every way
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadCheckpointError(f"{path} must hold tensors alone, got what torch refuses: {reason}") from error
    if not all(isinstance(value, Tensor) for value in tensors.values()):
        raise BadCheckpointError(f"{path} must hold tensors alone, got something else as well")
    return tensors


def _in_timms_names(tensors: Mapping[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    if "_conv_stem.weight" not in tensors or not isinstance(network, EfficientNet):
        return dict(tensors)
    places = [
        f"blocks.{stage}.{block}"
        for stage, blocks in enumerate(network.blocks.children())
        for block, _ in enumerate(blocks.children())
    ]
    return {_timms_name(key, tensors, places): value for key, value in tensors.items()}


def _timms_name(key: str, tensors: Mapping[str, Tensor], places: list[str]) -> str:
    module, _, leaf = key.rpartition(".")
    if not (block := re.fullmatch(r"_blocks\.(\d+)\.(\w+)", module)):
        return f"{_OUTER.get(module, module)}.{leaf}"
    number, part = int(block[1]), block[2]
    names = _EXPANDED if f"_blocks.{number}._expand_conv.weight" in tensors else _PLAIN
    place = places[number] if number < len(places) else module
    return f"{place}.{names.get(part, part)}.{leaf}"
