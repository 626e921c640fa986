"""Small parts that models share; all work on vectors, so a grid of cells is (N, cells, channels)."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def policy(logits: Tensor) -> Tensor:
    """Logits (..., cells) -> probabilities: scaled to length 1, then softmax (appendix 2.1.4).

    All-zero logits have no direction and give the uniform distribution.
    """
    length = torch.linalg.vector_norm(logits, dim=-1, keepdim=True)
    return torch.softmax(logits / torch.where(length > 0, length, 1), dim=-1)


def encode_positions(positions: Tensor, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Sines and cosines of (row, column, scale) (N, 3) as (N, size), with wavelengths from 2 pi to 200 pi."""
    count = size // 6
    # In half precision large coordinates would be rounded before their sines are taken.
    precise = torch.promote_types(dtype, torch.float32)
    exponents = torch.arange(count, device=positions.device, dtype=precise) / max(count - 1, 1)
    angles = positions.to(precise).unsqueeze(-1) * 100.0**-exponents  # (N, 3, count)
    waves = torch.stack((angles.sin(), angles.cos()), 2).flatten(1)  # sin y, cos y, sin x, cos x, sin s, cos s
    return F.pad(waves, (0, size - 6 * count)).to(dtype)


class AddPosition(nn.Module):
    """SiLU(feature + a linear map of its encoded position), the encoding a quarter as long as the feature."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features // 4, features)

    def forward(self, features: Tensor, positions: Tensor) -> Tensor:
        """(N, D) and (N, 3) -> (N, D)."""
        return F.silu(features + self.linear(encode_positions(positions, self.linear.in_features, features.dtype)))


class ConcatenatePosition(nn.Module):
    """A linear map of the feature and, beside it, its encoded position of the same length."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * features, features)

    def forward(self, features: Tensor, positions: Tensor) -> Tensor:
        """(N, D) and (N, 3) -> (N, D)."""
        encoded: Tensor = self.linear(
            torch.cat((features, encode_positions(positions, features.shape[1], features.dtype)), 1)
        )
        return encoded


class SqueezeExcite(nn.Module):
    """Scales each channel by a gate computed from the mean over the N vectors of a set."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.reduce = nn.Linear(channels, squeezed)
        self.expand = nn.Linear(squeezed, channels)

    def forward(self, vectors: Tensor) -> Tensor:
        """(B, N, channels) -> (B, N, channels)."""
        gate: Tensor = self.expand(F.silu(self.reduce(vectors.mean(1, keepdim=True))))
        return vectors * gate.sigmoid()


class FeatureWeighting(nn.Module):
    """How much each of N feature vectors counts (appendix 2.1.6)."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.context = SqueezeExcite(features, features // 4)
        self.score = nn.Linear(features, 1)

    def forward(self, vectors: Tensor) -> Tensor:
        """(B, N, D) -> (B, N) weights that sum to 1."""
        return torch.softmax(self.score(self.context(vectors)).squeeze(-1), dim=1)


class Coordinates(nn.Module):
    """Appends each cell's row and column, from -1 to 1 and each through a learned scalar affine."""

    coordinates: Tensor

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.height = nn.Linear(1, 1)
        self.width = nn.Linear(1, 1)
        y, x = torch.meshgrid(torch.linspace(-1, 1, rows), torch.linspace(-1, 1, columns), indexing="ij")
        self.register_buffer("coordinates", torch.stack((y, x), -1).reshape(-1, 2), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Both affines begin as the identity."""
        for affine in (self.height, self.width):
            nn.init.ones_(affine.weight)
            nn.init.zeros_(affine.bias)

    def forward(self, cells: Tensor) -> Tensor:
        """(N, cells, channels) -> (N, cells, channels + 2): row, then column, behind the channels."""
        y, x = self.coordinates[:, :1], self.coordinates[:, 1:]
        extra = torch.cat((self.height(y), self.width(x)), 1)
        return torch.cat((cells, extra.expand(len(cells), -1, -1)), 2)


_DEPTH: ContextVar[int] = ContextVar("depth", default=0)


@contextmanager
def at_depth(depth: int) -> Iterator[None]:
    """Within, ``LevelNorms`` are those of this level of the walk; 0 is the first look."""
    before = _DEPTH.set(depth)
    try:
        yield
    finally:
        _DEPTH.reset(before)


class LevelNorms(nn.Module):
    """A batch norm for each level of a walk; levels deeper than there are norms share the last one.

    In training each level is normalised by its own statistics. A norm that all levels share would keep a mixture of
    them, which is right for none in inference.
    """

    def __init__(self, norm: nn.Module, levels: int) -> None:
        super().__init__()
        self.levels = nn.ModuleList(copy.deepcopy(norm) for _ in range(levels))

    def forward(self, maps: Tensor) -> Tensor:
        """(N, channels, h, w) -> the same shape."""
        normed: Tensor = self.levels[min(_DEPTH.get(), len(self.levels) - 1)](maps)
        return normed


def give_levels_their_norms(network: nn.Module, levels: int) -> None:
    """Puts ``LevelNorms`` in place of every batch norm; each begins as what was there."""
    for parent in list(network.modules()):
        for name, part in list(parent.named_children()):
            if isinstance(part, nn.BatchNorm2d):
                setattr(parent, name, LevelNorms(part, levels))


def _truncated_normal_(weight: Tensor, std: float) -> None:
    """Normal values cut off at two sigma, widened so that ``std`` is what is left, as TensorFlow draws them."""
    sigma = std / 0.87962566103423978
    nn.init.trunc_normal_(weight, std=sigma, a=-2 * sigma, b=2 * sigma)


def initialise_glorot(module: nn.Module) -> None:
    """TensorFlow's glorot_normal for weights, zeros for biases: the paper's ImageNet models."""
    for part in module.modules():
        if isinstance(part, (nn.Conv2d, nn.Linear)):
            fan_in, fan_out = part.weight[0].numel(), part.weight[:, 0].numel()
            _truncated_normal_(part.weight, math.sqrt(2 / (fan_in + fan_out)))
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def initialise_fan_out(module: nn.Module, *, linear_as_convolution: bool = False) -> None:
    """EfficientNet's initialisation: truncated normal by fan-out for convolutions, uniform for dense layers.

    ``linear_as_convolution`` is for layers that are 1x1 convolutions in the papers and linear maps here.
    """
    for part in module.modules():
        if not isinstance(part, (nn.Conv2d, nn.Linear)):
            continue
        if isinstance(part, nn.Conv2d) or linear_as_convolution:
            groups = part.groups if isinstance(part, nn.Conv2d) else 1
            _truncated_normal_(part.weight, math.sqrt(2 * groups / part.weight[:, 0].numel()))
        else:
            bound = 1 / math.sqrt(part.out_features)
            nn.init.uniform_(part.weight, -bound, bound)
        if part.bias is not None:
            nn.init.zeros_(part.bias)
