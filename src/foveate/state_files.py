"""A tree of tensors and plain values in one safetensors file: the state of a training run, without a pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from foveate.weights import BadCheckpointError, write_safetensors

# JSON knows neither tensors nor keys that are not text; an object with one of these keys alone stands for such.
_TENSOR, _PAIRS, _TUPLE = "$tensor", "$pairs", "$tuple"


def write_state(tree: Mapping[str, Any], path: Path) -> None:
    """Writes ``path`` whole or not at all: whoever reads it finds the old state or the new one, never half of one."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_encode(tree, tensors))
    aside = path.with_name(f".{path.name}")  # what a killed run leaves there, the next one writes over
    try:
        write_safetensors(tensors, aside, {"tree": text})
        _flush_to_disk(aside)
        aside.replace(path)
        _flush_to_disk(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def read_state(path: Path) -> dict[str, Any]:
    """The tree that ``write_state`` wrote."""
    if not path.is_file():
        raise FileNotFoundError(f"state of a run must be in {path}, got no such file")
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get("tree")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is not a dict
    except SafetensorError as error:
        raise BadCheckpointError(f"{path} must be a safetensors file, got {error}") from error
    if text is None:
        raise BadCheckpointError(f"{path} must hold the state of a run, got tensors alone")
    try:
        tree = _decode(json.loads(text), tensors)
    except (ValueError, KeyError) as error:
        raise BadCheckpointError(f"{path} must hold the state of a run, got another tree: {error}") from error
    if not isinstance(tree, dict):
        raise BadCheckpointError(f"{path} must hold the state of a run, got {type(tree).__name__}")
    return tree


def _encode(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous().clone()  # safetensors refuses storage that is shared
        return {_TENSOR: name}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _encode(item, tensors) for key, item in value.items()}
        return {_PAIRS: [[_encode(key, tensors), _encode(item, tensors)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {_TUPLE: [_encode(item, tensors) for item in value]}
    if isinstance(value, list):
        return [_encode(item, tensors) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"state of a run must be tensors and plain values, got {type(value).__name__}")


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {_TENSOR}:
        return tensors[value[_TENSOR]]
    if set(value) == {_PAIRS}:
        return {_decode(key, tensors): _decode(item, tensors) for key, item in value[_PAIRS]}
    if set(value) == {_TUPLE}:
        return tuple(_decode(item, tensors) for item in value[_TUPLE])
    return {key: _decode(item, tensors) for key, item in value.items()}


def _flush_to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
