"""BagNet-77: a residual network that sees no more than 77 pixels at a time (TNet's appendix, Table 2).

It differs from the BagNet-77-lowD of the Saccader paper: some convolutions are padded, there is no batch norm,
and the activations are leaky.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from timm.layers.create_conv2d import create_conv2d
from timm.models import generate_default_cfgs, register_model
from torch import Tensor, nn

from foveate.layers import initialise_glorot

__all__ = ["BLOCKS", "BagNet77", "bagnet77"]

Padding = Literal["same", "valid"]

# What timm's registry knows of it; there are no separate weights.
default_cfgs = generate_default_cfgs(
    {"bagnet77": {"input_size": (3, 77, 77), "num_classes": 0, "mean": (0.5,) * 3, "std": (0.5,) * 3}}
)

# One tuple a block: stage, output channels, kernel, stride, padding.
BLOCKS: tuple[tuple[int, int, int, int, Padding], ...] = (
    (2, 256, 3, 2, "same"),
    (2, 256, 3, 1, "same"),
    (2, 256, 1, 1, "same"),
    (3, 512, 3, 2, "same"),
    (3, 512, 3, 1, "same"),
    (3, 512, 1, 1, "same"),
    (3, 512, 1, 1, "same"),
    (4, 1024, 3, 2, "valid"),
    (4, 1024, 3, 1, "same"),
    (4, 1024, 1, 1, "same"),
    (4, 1024, 1, 1, "same"),
    (4, 1024, 1, 1, "same"),
    (4, 1024, 1, 1, "same"),
    (5, 2048, 3, 1, "valid"),
    (5, 2048, 3, 1, "same"),
    (5, 2048, 1, 1, "same"),
)


def activate(maps: Tensor) -> Tensor:
    """Leaky ReLU with TensorFlow's default slope."""
    return F.leaky_relu(maps, 0.2, inplace=True)


class Block(nn.Module):
    """1x1 down to a quarter of the channels, k x k, 1x1 up; plus the input, projected where shapes differ."""

    def __init__(self, inputs: int, channels: int, kernel: int, stride: int, padding: Padding) -> None:
        super().__init__()
        inner = channels // 4
        # The pixels that an unpadded convolution takes off each side come off the shortcut as well.
        self.margin = kernel // 2 if padding == "valid" else 0
        self.reduce = nn.Conv2d(inputs, inner, 1)
        self.convolve = create_conv2d(inner, inner, kernel, stride=stride, padding=padding, bias=True)
        self.expand = nn.Conv2d(inner, channels, 1)
        changes = stride > 1 or inputs != channels
        self.project = nn.Conv2d(inputs, channels, 1, stride=stride) if changes else nn.Identity()

    def forward(self, maps: Tensor) -> Tensor:
        """(N, inputs, h, w) -> (N, channels, h', w')."""
        m = self.margin
        shortcut = self.project(maps[..., m : maps.shape[-2] - m, m : maps.shape[-1] - m])
        branch = self.expand(activate(self.convolve(activate(self.reduce(maps)))))
        return activate(branch + shortcut)


class BagNet77(nn.Module):
    """(N, in_chans, h, w) -> the mean of the local features, (N, 512)."""

    num_features = 512
    smallest = 27  # px a side; below, the unpadded convolutions have nothing left

    def __init__(self, in_chans: int = 3, spatial_dropout: float = 0.0) -> None:
        super().__init__()
        self.stem = nn.Conv2d(in_chans, 64, 3)
        stages: dict[str, list[nn.Module]] = {}
        inputs = 64
        for stage, channels, kernel, stride, padding in BLOCKS:
            stages.setdefault(f"stage{stage}", []).append(Block(inputs, channels, kernel, stride, padding))
            inputs = channels
        self.stages = nn.ModuleDict({name: nn.Sequential(*blocks) for name, blocks in stages.items()})
        self.head = nn.Conv2d(inputs, self.num_features, 1)
        self.drop = nn.Dropout2d(spatial_dropout)
        initialise_glorot(self)

    def forward(self, pixels: Tensor) -> Tensor:
        """(N, in_chans, h, w) -> (N, 512)."""
        if min(pixels.shape[2:]) < self.smallest:
            raise ValueError(f"BagNet-77 needs at least {self.smallest} px a side, got {tuple(pixels.shape[2:])}")
        maps = activate(self.stem(pixels))
        for stage in self.stages.values():
            maps = stage(maps)
        features: Tensor = self.drop(activate(self.head(maps)))
        return features.mean((2, 3))


@register_model  # so that it is one backbone among timm's
def bagnet77(
    pretrained: bool = False, *, in_chans: int = 3, spatial_dropout: float = 0.0, **_timm: object
) -> BagNet77:
    """BagNet-77 without classifier."""
    if _timm.get("drop_path_rate"):
        raise TypeError("BagNet-77 has no stochastic depth")
    if pretrained:
        raise ValueError("pretrained must be False for bagnet77: no separate weights of it were published")
    return BagNet77(in_chans, spatial_dropout)
