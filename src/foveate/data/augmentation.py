"""The augmentations that TNet's authors trained with, reproduced op by op; images are (channels, H, W) in [0, 1].

They are what TensorFlow's image ops compute, which differ from torchvision's of the same names: kernels are not
stretched when an image shrinks, bicubic has another parameter, contrast and saturation are not clipped on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from foveate.geometry import intersect

Resize = Literal["bilinear", "lanczos3", "lanczos5", "bicubic", "gaussian", "nearest", "area", "mitchellcubic"]
Box = tuple[int, int, int, int]  # left, top, width, height


def _triangle(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0)


def _lanczos(radius: int) -> Callable[[Tensor], Tensor]:
    def kernel(x: Tensor) -> Tensor:
        return torch.where(x.abs() < radius, torch.sinc(x) * torch.sinc(x / radius), 0)

    return kernel


def _gaussian(x: Tensor) -> Tensor:
    return torch.where(x.abs() < 1.5, torch.exp(-(x**2) / (2 * 0.5**2)), 0)


def _cubic(b: float, c: float) -> Callable[[Tensor], Tensor]:
    """The family of Mitchell and Netravali; (0, 1/2) is Keys' kernel, (1/3, 1/3) their own."""

    def kernel(x: Tensor) -> Tensor:
        x = x.abs()
        near = (12 - 9 * b - 6 * c) * x**3 + (-18 + 12 * b + 6 * c) * x**2 + (6 - 2 * b)
        far = (-b - 6 * c) * x**3 + (6 * b + 30 * c) * x**2 + (-12 * b - 48 * c) * x + (8 * b + 24 * c)
        return torch.where(x < 1, near, torch.where(x < 2, far, 0)) / 6

    return kernel


# Kernel, and how far it reaches.
_KERNELS: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "bilinear": (_triangle, 1),
    "lanczos3": (_lanczos(3), 3),
    "lanczos5": (_lanczos(5), 5),
    "bicubic": (_cubic(0, 0.5), 2),
    "gaussian": (_gaussian, 1.5),
    "mitchellcubic": (_cubic(1 / 3, 1 / 3), 2),
}
METHODS: tuple[Resize, ...] = (
    "bilinear", "lanczos3", "lanczos5", "bicubic", "gaussian", "nearest", "area", "mitchellcubic",
)  # fmt: skip


def resize(image: Tensor, size: tuple[int, int], method: Resize) -> Tensor:
    """``image`` at ``size`` (height, width), without antialiasing and without clipping."""
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, got {method!r}")
    rows = _mix(image.transpose(1, 2), *_taps(method, image.shape[1], size[0])).transpose(1, 2)
    return _mix(rows, *_taps(method, image.shape[2], size[1]))


def _taps(method: Resize, length: int, size: int) -> tuple[Tensor, Tensor]:
    """For each of ``size`` samples the pixels it is mixed from, (size, taps), and their weights."""
    scale = length / size
    samples = (torch.arange(size, dtype=torch.float64) + 0.5) * scale
    if method == "bicubic":  # TensorFlow looks this kernel up in a table of 1024 offsets
        samples = ((samples - 0.5) * 1024).round() / 1024 + 0.5
    if method == "nearest":
        return samples.floor().long().clamp(max=length - 1)[:, None], torch.ones(size, 1)
    if method == "area":
        start, end = samples - scale / 2, samples + scale / 2
        index = start.floor()[:, None] + torch.arange(math.ceil(scale) + 1)
        weights = (torch.minimum(end[:, None], index + 1) - torch.maximum(start[:, None], index)).clamp(min=0)
    else:
        kernel, reach = _KERNELS[method]
        index = (samples - reach - 0.5).ceil()[:, None] + torch.arange(math.ceil(2 * reach) + 1)
        weights = kernel(index + 0.5 - samples[:, None])
    weights = weights * ((index >= 0) & (index < length))
    return index.clamp(0, length - 1).long(), (weights / weights.sum(1, keepdim=True)).float()


def _mix(image: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums along the last axis."""
    out = image.new_zeros(*image.shape[:-1], len(index))
    for tap in range(index.shape[1]):
        out += image[..., index[:, tap]] * weights[:, tap]
    return out


def adjust_brightness(image: Tensor, delta: float) -> Tensor:
    """Adds ``delta``."""
    return image + delta


def adjust_contrast(image: Tensor, factor: float) -> Tensor:
    """Stretches each channel about its own mean."""
    mean = image.mean((1, 2), keepdim=True)
    return (image - mean) * factor + mean


def adjust_saturation(image: Tensor, factor: float) -> Tensor:
    """Scales the saturation of HSV, at most to 1."""
    hue, saturation, value = _to_hsv(image)
    return _from_hsv(hue, (saturation * factor).clamp(0, 1), value)


def adjust_hue(image: Tensor, delta: float) -> Tensor:
    """Turns the hue by ``delta`` of the circle."""
    hue, saturation, value = _to_hsv(image)
    return _from_hsv((hue + delta) % 1, saturation, value)


def _to_hsv(image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    red, green, blue = image
    value, low = image.amax(0), image.amin(0)
    spread = value - low
    safe = torch.where(spread > 0, spread, 1)
    hue = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    hue = torch.where(spread > 0, (hue / 6) % 1, 0)
    saturation = torch.where(value != 0, spread / torch.where(value != 0, value, 1), 0)
    return hue, saturation, value


def _from_hsv(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    turned = hue * 6
    shape = torch.stack(((turned - 3).abs() - 1, 2 - (turned - 2).abs(), 2 - (turned - 4).abs())).clamp(0, 1)
    return ((shape - 1) * saturation + 1) * value


@dataclass(frozen=True, slots=True)
class Affine:
    """A nearest-neighbour warp: output pixel (x, y) is input pixel (a x + b y + c, d x + e y + f), black outside."""

    a: float
    b: float
    c: float
    d: float
    e: float
    f: float

    @classmethod
    def translation(cls, dx: float, dy: float) -> Affine:
        """Moves the image by (dx, dy)."""
        return cls(1, 0, -dx, 0, 1, -dy)

    @classmethod
    def rotation(cls, angle: float, height: int, width: int) -> Affine:
        """Turns the image by ``angle`` (radians) about its centre."""
        cos, sin, w, h = math.cos(angle), math.sin(angle), width - 1, height - 1
        return cls(cos, -sin, (w - (cos * w - sin * h)) / 2, sin, cos, (h - (sin * w + cos * h)) / 2)

    def __call__(self, image: Tensor) -> Tensor:
        """Warps (channels, H, W)."""
        height, width = image.shape[1:]
        y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        column = (self.a * x + self.b * y + self.c).round().long()
        row = (self.d * x + self.e * y + self.f).round().long()
        inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
        return image[:, row.clamp(0, height - 1), column.clamp(0, width - 1)] * inside


def uniform(low: float, high: float, generator: torch.Generator) -> float:
    """One number, evenly between two."""
    return low + (high - low) * float(torch.rand((), generator=generator))


def _below(count: int, generator: torch.Generator) -> int:
    return int(torch.randint(count, (), generator=generator)) if count > 0 else 0


def distorted_crop(
    width: int,
    height: int,
    generator: torch.Generator,
    *,
    objects: Sequence[tuple[float, float, float, float]] = (),
    area: tuple[float, float] = (0.85, 1.0),
    aspect: tuple[float, float] = (0.5, 2.0),
    covered: float = 0.1,
    attempts: int = 50,
) -> Box:
    """A random crop as TensorFlow draws it: first its aspect, then its height among those that fit; else all.

    At least one of ``objects`` (left, top, right, bottom, in pixels) is to be covered by the share ``covered``.
    """
    for _ in range(attempts):
        ratio = uniform(*aspect, generator)
        crop = _crop_of_aspect(width, height, ratio, (area[0] * width * height, area[1] * width * height), generator)
        if crop and (not objects or any(_share_inside(box, crop) >= covered for box in objects)):
            return crop
    return (0, 0, width, height)


def _crop_of_aspect(
    width: int, height: int, ratio: float, areas: tuple[float, float], generator: torch.Generator
) -> Box | None:
    lowest, highest = (round(math.sqrt(area / ratio)) for area in areas)
    if round(highest * ratio) > width:
        highest = int((width + 0.5 - 1e-7) / ratio)
        highest -= round(highest * ratio) > width
    highest = min(highest, height)
    tall = min(lowest, highest)
    tall += _below(highest - tall + 1, generator)
    # Rounding may have left the range of areas by a row.
    tall += round(tall * ratio) * tall < areas[0]
    tall -= round(tall * ratio) * tall > areas[1]
    wide = round(tall * ratio)
    if not areas[0] <= wide * tall <= areas[1] or wide > width or tall > height or min(wide, tall) < 1:
        return None
    return (_below(width - wide, generator), _below(height - tall, generator), wide, tall)


def _share_inside(box: tuple[float, float, float, float], crop: Box) -> float:
    """How much of a box (left, top, right, bottom) lies in a crop (left, top, width, height)."""
    common = intersect(box, (crop[0], crop[1], crop[0] + crop[2], crop[1] + crop[3]))
    area = (box[2] - box[0]) * (box[3] - box[1])
    return (common[2] - common[0]) * (common[3] - common[1]) / area if common and area > 0 else 0.0


# The four orders of the photometric ops; a fifth case does nothing, and does not clip either.
_ORDERS = (
    ("brightness", "saturation", "hue", "contrast"),
    ("saturation", "brightness", "contrast", "hue"),
    ("contrast", "hue", "brightness", "saturation"),
    ("hue", "saturation", "contrast", "brightness"),
)


def photometric(image: Tensor, generator: torch.Generator) -> Tensor:
    """Brightness, saturation, hue and contrast in one of four orders; in one case of five nothing."""
    order = _below(len(_ORDERS) + 1, generator)
    if order == len(_ORDERS):
        return image
    for name in _ORDERS[order]:
        if name == "brightness":
            image = adjust_brightness(image, uniform(-32 / 255, 32 / 255, generator))
        elif name == "saturation":
            image = adjust_saturation(image, uniform(0.5, 1.5, generator))
        elif name == "hue":
            image = adjust_hue(image, uniform(-0.2, 0.2, generator))
        else:
            image = adjust_contrast(image, uniform(0.5, 1.5, generator))
    return image.clamp(0, 1)


def move_and_turn(image: Tensor, generator: torch.Generator) -> Tensor:
    """Moves by up to a tenth of each side, then turns by up to 20 degrees; black comes in."""
    height, width = image.shape[1:]
    shift = Affine.translation(
        uniform(-0.1 * width, 0.1 * width, generator), uniform(-0.1 * height, 0.1 * height, generator)
    )
    turn = Affine.rotation(math.radians(uniform(-20, 20, generator)), height, width)
    return turn(shift(image))


def augment(
    image: Tensor,
    size: tuple[int, int],
    generator: torch.Generator,
    *,
    kind: Literal["photometric", "geometric"],
    objects: Sequence[tuple[float, float, float, float]] = (),
) -> Tensor:
    """The authors' whole chain on (channels, H, W) in [0, 1] -> (channels, *size) in about [-1, 1].

    ``photometric`` is what they trained with on ImageNet and fMoW, ``geometric`` on CUB and NABirds.
    """
    left, top, width, height = distorted_crop(image.shape[2], image.shape[1], generator, objects=objects)
    crop = image[:, top : top + height, left : left + width]
    image = resize(crop, size, METHODS[_below(len(METHODS), generator)])
    if float(torch.rand((), generator=generator)) < 0.5:
        image = image.flip(2)
    image = (photometric if kind == "photometric" else move_and_turn)(image, generator)
    return image * 2 - 1
