"""EfficientNet and TNet once more, in plain functions on the official variables: an independent second opinion.

Written from the published tables, not from timm or foveate; slow, one image at a time, in any precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

# kernel, repeats, input channels, output channels, expansion, stride
STAGES = (
    (3, 1, 32, 16, 1, 1),
    (3, 2, 16, 24, 6, 2),
    (5, 2, 24, 40, 6, 2),
    (3, 3, 40, 80, 6, 2),
    (5, 3, 80, 112, 6, 1),
    (5, 4, 112, 192, 6, 2),
    (3, 1, 192, 320, 6, 1),
)
SCALES = {"b0": (1.0, 1.0), "b1": (1.0, 1.1), "b2": (1.1, 1.2), "b3": (1.2, 1.4), "b4": (1.4, 1.8)}


@dataclass(frozen=True)
class Variant:
    """One published model: its width and depth, and where its location module looks (part, block, pixels)."""

    scale: tuple[float, float]
    tap: tuple[int, int, Sequence[int]]
    grid: int
    cell: float
    weighting: bool


VARIANTS = {
    "tnet_fmow": Variant(SCALES["b0"], (5, 3, (2, 6, 10)), 3, 0.5, False),
    "tnet_b0": Variant(SCALES["b0"], (5, 1, (2, 4, 6, 8, 10)), 5, 0.35, True),
    **{f"tnet_b{i}": Variant(SCALES[f"b{i}"], (4, 2, (5, 9, 13, 17, 21)), 5, 0.35, True) for i in (1, 2, 3, 4)},
}


@dataclass
class Official:
    """The variables of a checkpoint in PyTorch's layout, and which of them were used."""

    variables: dict[str, Tensor]
    used: set[str] = field(default_factory=set)

    def __getitem__(self, name: str) -> Tensor:
        self.used.add(name)
        return self.variables[name]

    def convolve(self, x: Tensor, name: str, stride: int = 1, groups: int = 1, bias: bool = False) -> Tensor:
        """A convolution with TensorFlow's SAME padding; pointwise kernels may be stored as matrices."""
        kernel = self[f"{name}/{'depthwise_kernel' if groups > 1 else 'kernel'}"]
        kernel = kernel if kernel.ndim == 4 else kernel[:, :, None, None]
        pads: list[int] = []
        for side, length in ((x.shape[-1], kernel.shape[-1]), (x.shape[-2], kernel.shape[-2])):
            total = max((-(-side // stride) - 1) * stride + length - side, 0)
            pads += [total // 2, total - total // 2]
        return F.conv2d(F.pad(x, pads), kernel, self[f"{name}/bias"] if bias else None, stride, groups=groups)

    def normalise(self, x: Tensor, name: str) -> Tensor:
        gamma, beta, mean, variance = (
            self[f"{name}/{part}"].view(1, -1, 1, 1) for part in ("gamma", "beta", "moving_mean", "moving_variance")
        )
        return (x - mean) / torch.sqrt(variance + 1e-3) * gamma + beta

    def dense(self, x: Tensor, name: str) -> Tensor:
        return self[f"{name}/kernel"] @ x + self[f"{name}/bias"]

    def squeeze_excite(self, x: Tensor, name: str) -> Tensor:
        z = silu(self.convolve(x.mean((2, 3), keepdim=True), f"{name}/conv2d_1", bias=True))
        return x * torch.sigmoid(self.convolve(z, f"{name}/conv2d_2", bias=True))


def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def channels(count: int, width: float) -> int:
    scaled = count * width
    rounded = max(8, int(scaled + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * scaled else rounded


def efficientnet(v: Official, x: Tensor, scale: tuple[float, float], tap: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """(1, 3, h, w) -> the pooled vector (D,), and the map after block ``tap`` (part, block)."""
    root, tapped = "feature_extraction", x
    x = silu(v.normalise(v.convolve(x, f"{root}/stem/conv2d", 2), f"{root}/stem/batch_norm"))
    for part, (_, repeats, inputs, outputs, expansion, stride) in enumerate(STAGES, 2):
        for block in range(1, math.ceil(repeats * scale[1]) + 1):
            before = channels(inputs if block == 1 else outputs, scale[0])
            after, step = channels(outputs, scale[0]), stride if block == 1 else 1
            name = f"{root}/part{part}_block{block}"
            y = x
            if expansion > 1:
                y = silu(v.normalise(v.convolve(y, f"{name}/expand/conv2d"), f"{name}/expand/batch_norm"))
            wide = before * expansion
            y = v.convolve(y, f"{name}/depthwise/conv2d", step, groups=wide)
            y = v.squeeze_excite(silu(v.normalise(y, f"{name}/depthwise/batch_norm")), f"{name}/se")
            y = v.normalise(v.convolve(y, f"{name}/bottleneck/conv2d"), f"{name}/bottleneck/batch_norm")
            x = x + y if step == 1 and before == after else y
            if (part, block) == tap:
                tapped = x
    x = silu(v.normalise(v.convolve(x, f"{root}/top/conv2d"), f"{root}/top/batch_norm"))
    return x.mean((2, 3))[0], tapped


def encode(position: tuple[int, int, int], size: int, like: Tensor) -> Tensor:
    count = size // 6
    waves = [100 ** (-t / (count - 1)) for t in range(count)]
    values = [f(p * w) for p in position for f in (math.sin, math.cos) for w in waves]
    return like.new_tensor(values + [0.0] * (size - 6 * count))


def locate(v: Official, cells: Tensor, n: int) -> Tensor:
    root = "location_prediction"
    x = v.squeeze_excite(silu(v.convolve(cells, f"{root}/init/conv2d", bias=True)), f"{root}/se")
    line = torch.linspace(-1, 1, n, dtype=x.dtype)
    y = (line * v[f"{root}/height_scaling/kernel"].flatten() + v[f"{root}/height_scaling/bias"]).view(1, 1, n, 1)
    z = (line * v[f"{root}/width_scaling/kernel"].flatten() + v[f"{root}/width_scaling/bias"]).view(1, 1, 1, n)
    x = torch.cat((x, y.expand(1, 1, n, n), z.expand(1, 1, n, n)), 1)
    x = silu(v.convolve(x, f"{root}/final/conv2d", bias=True))
    logits = v.convolve(x, f"{root}/output_linear", bias=True).flatten()
    return torch.softmax(logits / logits.norm(), 0)


def children(image: Tensor, cells: Sequence[int], n: int, fraction: float) -> list[Tensor]:
    """The chosen cells, cut from the zero-padded crop."""
    lengths, strides, pads = [], [], []
    for side in (image.shape[2], image.shape[1]):
        length = round(side * fraction)
        stride = math.ceil((side - length) / (n - 1))
        pad = (n - 1) * stride + length - side
        lengths.append(length)
        strides.append(stride)
        pads += [math.ceil(pad / 2), pad - math.ceil(pad / 2)]
    padded, (wide, tall), (across, down) = F.pad(image, pads), lengths, strides
    places = [(cell // n * down, cell % n * across) for cell in cells]
    return [padded[:, y : y + tall, x : x + wide] for y, x in places]


@dataclass(frozen=True)
class Outcome:
    """What the reference makes of one image."""

    logits: Tensor
    weights: Tensor
    cells: list[list[int]]
    features: Tensor


def walk(v: Official, image: Tensor, variant: Variant, locations: Sequence[int], base: int = 224) -> Outcome:
    """A whole TNet over one image (3, H, W)."""
    part, block, pixels = variant.tap
    encoded, seen, opened = [], [], []
    level = [(image, 0, 0)]
    for depth, fanout in enumerate((*locations, 0)):
        following, chosen = [], []
        for crop, row, column in level:
            glimpse = F.interpolate(crop[None], (base, base), mode="bilinear", align_corners=False)
            vector, tapped = efficientnet(v, glimpse, variant.scale, (part, block))
            position = encode((row, column, depth), len(vector) // 4, vector)
            seen.append(vector)
            encoded.append(silu(vector + v.dense(position, "feature_posBurn/linear")))
            if fanout:
                p = locate(v, tapped[:, :, pixels][..., pixels], variant.grid).tolist()
                cells = sorted(sorted(range(len(p)), key=lambda cell: (-p[cell], cell))[:fanout])
                chosen += cells
                for cell, child in zip(cells, children(crop, cells, variant.grid, variant.cell), strict=True):
                    at = divmod(cell, variant.grid)
                    following.append((child, row * variant.grid + at[0], column * variant.grid + at[1]))
        level = following
        opened += [chosen] if fanout else []
    vectors = torch.stack(encoded)
    weights = vectors.new_full((len(vectors),), 1 / len(vectors))
    if variant.weighting:
        gate = silu(v.dense(vectors.mean(0), "feat_weighting/se/dense_1"))
        gated = vectors * torch.sigmoid(v.dense(gate, "feat_weighting/se/dense_2"))
        scores = gated @ v["feat_weighting/output_linear/kernel"].flatten() + v["feat_weighting/output_linear/bias"]
        weights = torch.softmax(scores, 0)
    logits = v.dense(weights @ vectors, "feature_extraction/logits_layer/linear")
    return Outcome(logits, weights, opened, torch.stack(seen))
