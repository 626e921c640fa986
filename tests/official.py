"""The deterministic weights and images of the golden files, made from names, shapes and seeds.

The golden outputs were made by the official TensorFlow programs on exactly these.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from foveate.checkpoints import tensorflow_names, to_torch
from foveate.models import Model

GOLDEN = Path(__file__).parent / "golden"
Array = npt.NDArray[Any]

# A kernel's gain, by the first of these endings that its name has.
GAINS_EFFICIENTNET = {
    "stem/conv2d/kernel": 2.4,
    "expand/conv2d/kernel": 1.0,
    "depthwise_kernel": 1.4,
    "bottleneck/conv2d/kernel": 2.4,
    "top/conv2d/kernel": 1.0,
    "location_prediction/se/conv2d_1/kernel": 2.0,
    "location_prediction/se/conv2d_2/kernel": 2.0,
    "location_prediction/init/conv2d/kernel": 1.5,
    "location_prediction/final/conv2d/kernel": 1.5,
    "location_prediction/output_linear/kernel": 1.0,
    "se/conv2d_1/kernel": 1.0,
    "se/conv2d_2/kernel": 1.0,
    "feature_posBurn/linear/kernel": 1.0,
    "logits_layer/linear/kernel": 1.0,
    "feat_weighting/se/dense_1/kernel": 2.0,
    "feat_weighting/se/dense_2/kernel": 2.0,
    "feat_weighting/output_linear/kernel": 0.2,
}
GAINS_BAGNET = {
    "part1/conv2d/kernel": 2.0,
    "comp_1/conv2d/kernel": 1.0,
    "comp_2/conv2d/kernel": 1.4,
    "comp_3/conv2d/kernel": 0.7,
    "shortcut_comp/conv2d/kernel": 1.0,
    "part6/conv2d/kernel": 1.0,
    "location_prediction_earlyLocs/conv2d/kernel": 1.0,
    "location_prediction_earlyLocs/output_linear/kernel": 1.0,
    "feature_posBurn/linear/kernel": 1.0,
    "logits_layer/linear/kernel": 4.0,
}


def weight(name: str, shape: tuple[int, ...], *, bagnet: bool) -> Array:
    """The value of one variable: small integers, drawn from a seed that its name gives, times a scale."""
    draw = np.random.RandomState(zlib.crc32(name.encode()) & 0x7FFFFFFF).randint
    leaf = name.rsplit("/", 1)[-1]

    def integers(low: int, high: int) -> Array:
        return draw(low, high + 1, size=shape).astype(np.float32)

    if name == "baseline_var":
        return np.float32(0.4375)
    if "_scaling" in name:
        return np.float32(leaf == "kernel") + integers(-4, 4) / np.float32(8)
    if leaf == "gamma":
        return np.float32(1) + integers(-1, 1) / np.float32(8)
    if leaf == "moving_variance":
        return (np.float32(1) + integers(0, 3)) / np.float32(2)
    simple = {"beta": (2, 16), "moving_mean": (2, 8), "bias": (3, 16)}
    if leaf in simple:
        bound, divisor = simple[leaf]
        return integers(-bound, bound) / np.float32(divisor)
    bound = 1 if bagnet else 3
    fan_in = shape[0] * shape[1] if leaf == "depthwise_kernel" else int(np.prod(shape[:-1]))
    gains = GAINS_BAGNET if bagnet else GAINS_EFFICIENTNET
    gain = next(value for ending, value in gains.items() if name.endswith(ending))
    std = np.sqrt(((2 * bound + 1) ** 2 - 1) / 12.0)
    return integers(-bound, bound) * np.float32(gain / (std * np.sqrt(fan_in)))


def fill(model: Model) -> Model:
    """Gives a model its deterministic weights, and sets it to inference."""
    state = model.state_dict()
    bagnet = model.config.backbone == "bagnet77"
    for key, name in tensorflow_names(model).items():
        shape = tuple(state[key].shape)
        if len(shape) == 4:
            order = (2, 3, 0, 1) if name.endswith("depthwise_kernel") else (2, 3, 1, 0)
            shape = tuple(shape[dim] for dim in order)
        state[key] = to_torch(
            name, np.asarray(weight(name, shape[::-1] if len(shape) == 2 else shape, bagnet=bagnet)), state[key]
        )
    model.load_state_dict(state)
    return model.eval()


def images(count: int, size: int, seed: int) -> Tensor:
    """Blocks of random grey at four scales, in eighths: (count, 3, size, size)."""
    draw = np.random.RandomState(seed).randint
    total = np.zeros((count, size, size, 3), np.int32)
    for block, bound in ((size // 4, 3), (size // 14, 3), (max(1, size // 56), 2), (max(1, size // 448), 1)):
        cells = -(-size // block)
        values = draw(-bound, bound + 1, size=(count, cells, cells, 3))
        total += np.repeat(np.repeat(values, block, 1), block, 2)[:, :size, :size]
    return torch.from_numpy(np.clip(total, -8, 8).astype(np.float32) / 8).permute(0, 3, 1, 2).contiguous()


def golden(name: str) -> dict[str, Tensor]:
    """The outputs of an official program."""
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as file:
        return {key: torch.from_numpy(file[key]) for key in file.files}


def assert_close(got: Tensor, wanted: Tensor, tolerance: float = 1e-4) -> None:
    """Equal within a share of the wanted tensor's largest value."""
    assert got.shape == wanted.shape, (got.shape, wanted.shape)
    error = ((got.detach() - wanted.detach()).abs().max() / wanted.detach().abs().max()).item()
    assert error <= tolerance, error
