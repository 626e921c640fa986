"""Save and load: safetensors + config.json; and the authors' published TensorFlow checkpoints."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from timm.models import adapt_input_conv
from torch import Tensor, nn

from foveate.class_orders import published_order
from foveate.layers import LevelNorms
from foveate.models import GENERIC, PRESETS, Config, Model, TNet, build, config_from
from foveate.tensor_bundle import TensorBundle
from foveate.weights import (
    WEIGHTS,
    BadCheckpointError,
    differences,
    load_strictly,
    read_safetensors,
    write_safetensors,
)

CONFIG = "config.json"


def save(model: Model, folder: str | Path) -> None:
    """Writes ``config.json`` and ``model.safetensors``.

    Both are written aside first, so a save that fails leaves what was there; they are moved into place one by one.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = json.dumps(dataclasses.asdict(model.config), indent=2)
    aside = Path(tempfile.mkdtemp(prefix=".saving-", dir=folder))
    try:
        tensors = {name: value.detach().contiguous() for name, value in model.state_dict().items()}
        write_safetensors(tensors, aside / WEIGHTS, {"format": "pt"})
        (aside / CONFIG).write_text(config + "\n", encoding="utf-8")
        for name in (WEIGHTS, CONFIG):
            (aside / name).replace(folder / name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def load(folder: str | Path) -> Model:
    """The model that ``save`` wrote, ready for inference."""
    folder = Path(folder)
    model = build(read_config(folder))
    load_strictly(model, read_safetensors(folder / WEIGHTS), str(folder))
    return model.eval()


def read_config(folder: Path) -> Config:
    """The configuration of a saved model."""
    path = folder / CONFIG
    if not path.is_file():
        raise FileNotFoundError(f"model folder must hold {CONFIG} and {WEIGHTS}, got no {path}")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} must be JSON, got {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold an object, got {type(values).__name__}")
    return config_from(values)


def load_weights(model: Model, path: str | Path) -> None:
    """Fills a model from a saved model's folder, a TensorFlow checkpoint, or a .safetensors file.

    The file may hold the whole model, or the backbone alone under timm's names: a classifier in it is left out, and
    weights for 3 channels serve any number of them.
    """
    path = Path(path)
    if path.is_dir() and (path / WEIGHTS).is_file():
        path = path / WEIGHTS
    if path.suffix == ".safetensors":
        tensors = read_safetensors(path)
        if "classifier.1.weight" in tensors:
            load_strictly(model, tensors, str(path))
        else:
            _load_backbone(model, tensors, str(path))
    elif path.suffix in (".pth", ".pt", ".bin", ".ckpt", ".tar", ".pkl"):
        raise ValueError(f"checkpoint_path must not be a pickle, which may run code, got {path.name}")
    else:
        load_tensorflow(model, path)


def _load_backbone(model: Model, tensors: Mapping[str, Tensor], where: str) -> None:
    network = model.backbone.network if isinstance(model, TNet) else model.network
    known = getattr(network, "pretrained_cfg", {})
    heads, firsts = (_prefixes(known.get(part)) for part in ("classifier", "first_conv"))
    kept = {name: value for name, value in tensors.items() if not (heads and name.startswith(heads))}
    for name in (f"{first}weight" for first in firsts):
        # Other bands than the file's: timm's own rule, as for the weights that it fetches.
        if name in kept and kept[name].shape[1] == 3 != model.config.in_chans:
            kept[name] = adapt_input_conv(model.config.in_chans, kept[name])
    load_strictly(network, _for_each_level(kept, network), where)


def _for_each_level(tensors: Mapping[str, Tensor], network: nn.Module) -> dict[str, Tensor]:
    """Where levels have norms of their own, each begins as the one that they share in the file."""
    places = {name: part for name, part in network.named_modules() if isinstance(part, LevelNorms)}
    found = dict(tensors)
    for name in tensors:
        module, _, leaf = name.rpartition(".")
        if module in places:
            value = found.pop(name)
            found |= {f"{module}.levels.{level}.{leaf}": value for level in range(len(places[module].levels))}
    return found


def _prefixes(modules: str | Sequence[str] | None) -> tuple[str, ...]:
    return tuple(f"{module}." for module in ((modules,) if isinstance(modules, str) else modules or ()))


# --- TensorFlow ------------------------------------------------------------------------------------------

_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
_IGNORED = re.compile(
    r"^(_CHECKPOINTABLE_OBJECT_GRAPH$|iter/|Adam\.Siter/|save_counter/|optimizer/)|/\.OPTIMIZER_SLOT/"
)
_NORM = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}

# Our modules -> theirs. A pattern applies to the module that holds a parameter.
_MODULES: tuple[tuple[str, str], ...] = (
    (r"classifier\.1", "feature_extraction/logits_layer/linear"),
    (r"position\.linear", "feature_posBurn/linear"),
    (r"weigh\.context\.reduce", "feat_weighting/se/dense_1"),
    (r"weigh\.context\.expand", "feat_weighting/se/dense_2"),
    (r"weigh\.score", "feat_weighting/output_linear"),
)
_LIGHT: tuple[tuple[str, str], ...] = (
    (r"locate\.project", "location_prediction/init/conv2d"),
    (r"locate\.context\.reduce", "location_prediction/se/conv2d_1"),
    (r"locate\.context\.expand", "location_prediction/se/conv2d_2"),
    (r"locate\.coordinates\.(height|width)", r"location_prediction/\1_scaling"),
    (r"locate\.fuse", "location_prediction/final/conv2d"),
    (r"locate\.score", "location_prediction/output_linear"),
)
_WIDE: tuple[tuple[str, str], ...] = (
    (r"locate\.coordinates\.(height|width)", r"location_prediction_earlyLocs/\1_scaling"),
    (r"locate\.fuse", "location_prediction_earlyLocs/conv2d"),
    (r"locate\.score", "location_prediction_earlyLocs/output_linear"),
)
_BAGNET: tuple[tuple[str, str], ...] = (
    (r"stem", "part1/conv2d"),
    (r"head", "part6/conv2d"),
    (r"stages\.stage(\d)\.(\d+)\.reduce", r"part\1_block+\2/comp_1/conv2d"),
    (r"stages\.stage(\d)\.(\d+)\.convolve", r"part\1_block+\2/comp_2/conv2d"),
    (r"stages\.stage(\d)\.(\d+)\.expand", r"part\1_block+\2/comp_3/conv2d"),
    (r"stages\.stage(\d)\.(\d+)\.project", r"part\1_block+\2/shortcut_comp/conv2d"),
)
# The first stage's blocks have no expansion, so their layers are numbered differently.
_EFFICIENTNET: tuple[tuple[str, str], ...] = (
    (r"conv_stem", "stem/conv2d"),
    (r"bn1", "stem/batch_norm"),
    (r"conv_head", "top/conv2d"),
    (r"bn2", "top/batch_norm"),
    (r"blocks\.0\.(\d+)\.conv_dw", r"part2_block+\1/depthwise/conv2d"),
    (r"blocks\.0\.(\d+)\.bn1", r"part2_block+\1/depthwise/batch_norm"),
    (r"blocks\.0\.(\d+)\.conv_pw", r"part2_block+\1/bottleneck/conv2d"),
    (r"blocks\.0\.(\d+)\.bn2", r"part2_block+\1/bottleneck/batch_norm"),
    (r"blocks\.(\d)\.(\d+)\.conv_pw", r"part++\1_block+\2/expand/conv2d"),
    (r"blocks\.(\d)\.(\d+)\.bn1", r"part++\1_block+\2/expand/batch_norm"),
    (r"blocks\.(\d)\.(\d+)\.conv_dw", r"part++\1_block+\2/depthwise/conv2d"),
    (r"blocks\.(\d)\.(\d+)\.bn2", r"part++\1_block+\2/depthwise/batch_norm"),
    (r"blocks\.(\d)\.(\d+)\.conv_pwl", r"part++\1_block+\2/bottleneck/conv2d"),
    (r"blocks\.(\d)\.(\d+)\.bn3", r"part++\1_block+\2/bottleneck/batch_norm"),
    (r"blocks\.(\d)\.(\d+)\.se\.conv_reduce", r"part++\1_block+\2/se/conv2d_1"),
    (r"blocks\.(\d)\.(\d+)\.se\.conv_expand", r"part++\1_block+\2/se/conv2d_2"),
)


def from_tensorflow(
    prefix: str | Path, name: str, *, num_classes: int, class_names: Sequence[str] | None = None
) -> Model:
    """The named model with the weights of a published TensorFlow checkpoint, ready for inference.

    Its configuration keeps the order of classes that the checkpoint assumes, and the names where they are known.
    """
    published = [known for known in PRESETS if known not in GENERIC]
    if name not in published:
        raise ValueError(f"model must be one of {', '.join(published)}, got {name!r}")
    known, order = published_order(name, num_classes)
    model = build(PRESETS[name](num_classes=num_classes, class_names=class_names or known, class_order=order))
    load_tensorflow(model, prefix)
    return model.eval()


def load_tensorflow(model: Model, prefix: str | Path) -> None:
    """Fills a model from a TensorFlow checkpoint; optimiser slots and step counters are ignored."""
    bundle = TensorBundle(prefix)
    found = {key.removesuffix(_SUFFIX).replace(".S", "/"): key for key in bundle.entries if not _IGNORED.search(key)}
    wanted = model.state_dict()
    names = tensorflow_names(model)
    problems = differences(
        {names[key]: tensorflow_shape(names[key], wanted[key]) for key in names},
        {name: _squeezed(bundle.entries[key].shape) for name, key in found.items()},
    )
    if problems:
        raise BadCheckpointError(f"{bundle.prefix} must fit {model.config.name}, got {problems}")
    for key, name in names.items():
        wanted[key] = to_torch(name, bundle.read(found[name]), wanted[key])
    model.load_state_dict(wanted)


def tensorflow_names(model: Model) -> dict[str, str]:
    """The official name of every tensor of a model."""
    return {
        key: _tensorflow_name(model, key) for key in model.state_dict() if not key.endswith("num_batches_tracked")
    }


def _tensorflow_name(model: Model, key: str) -> str:
    if key == "reward_baseline":
        return "baseline_var"
    module, leaf = key.rsplit(".", 1)
    network, ours = re.subn(r"^(backbone\.)?network\.", "", module)
    if ours:
        rules = _BAGNET if model.config.backbone == "bagnet77" else _EFFICIENTNET
        theirs = f"feature_extraction/{_translate(network, rules, model)}"
    else:
        location = _WIDE if isinstance(model, TNet) and model.config.modules == "wide" else _LIGHT
        theirs = _translate(module, (*_MODULES, *location), model)
    if theirs.endswith("batch_norm"):
        return f"{theirs}/{_NORM[leaf]}"
    kernel = "depthwise_kernel" if theirs.endswith("depthwise/conv2d") else "kernel"
    return f"{theirs}/{kernel if leaf == 'weight' else leaf}"


def _translate(module: str, rules: tuple[tuple[str, str], ...], model: Model) -> str:
    for pattern, theirs in rules:
        if match := re.fullmatch(pattern, module):
            # A '+' before a number means that they count from one more.
            return re.sub(r"(\++)(\d+)", lambda plus: str(int(plus[2]) + len(plus[1])), match.expand(theirs))
    raise ValueError(f"model must be one that was published in TensorFlow, got {model.config.name} with {module}")


def tensorflow_shape(name: str, tensor: Tensor) -> tuple[int, ...]:
    """The shape under which TensorFlow holds a tensor of ours, without the 1 x 1 of pointwise kernels."""
    shape = tuple(tensor.shape)
    if len(shape) == 4:
        order = (2, 3, 0, 1) if name.endswith("depthwise_kernel") else (2, 3, 1, 0)
        shape = tuple(shape[dim] for dim in order)
    elif len(shape) == 2:
        shape = shape[::-1]
    return _squeezed(shape)


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Pointwise convolutions are linear maps here in some places and convolutions in others."""
    return shape[2:] if len(shape) == 4 and shape[:2] == (1, 1) else shape


def to_torch(name: str, values: npt.NDArray[Any], like: Tensor) -> Tensor:
    """A TensorFlow variable in our layout, shape and type."""
    if values.ndim == 4:
        values = values.transpose((2, 3, 0, 1) if name.endswith("depthwise_kernel") else (3, 2, 0, 1))
    elif values.ndim == 2:
        values = values.T
    return torch.from_numpy(np.array(values)).to(like).reshape(like.shape)
