"""Images as things that answer ``read(region, size)``; this file has the protocol and images in memory.

Pixels are float32 in [-1, 1], channels first; 0 is mid-grey and fills whatever lies outside of the image.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from foveate.geometry import Box, Region

# What the largest stored value is for each integer type that images come in.
FULL_SCALE = {torch.uint8: 255.0, torch.uint16: 65535.0}


@runtime_checkable
class ImageSource(Protocol):
    """An image of any size that can be read piece by piece.

    A source that cannot antialias may leave that keyword out, where types are not checked: it is passed only when a
    model asks for it.
    """

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in full-resolution pixels."""
        ...

    def read(self, region: Region, size: tuple[int, int], *, antialias: bool = False) -> Tensor:
        """The region's pixels, (channels, height, width) float32 in [-1, 1], resampled to ``size`` (w, h)."""
        ...


def to_unit_range(pixels: Tensor) -> Tensor:
    """Pixels in [-1, 1]: integers are scaled from their type's range, floats are kept, in at least float32."""
    if pixels.is_floating_point():
        return pixels.to(torch.promote_types(pixels.dtype, torch.float32))
    if pixels.dtype not in FULL_SCALE:
        raise ValueError(f"pixels must be float in [-1, 1], uint8 or uint16, got {pixels.dtype}")
    return pixels.to(torch.float32) / FULL_SCALE[pixels.dtype] * 2 - 1


class TensorImage:
    """An image in memory: a (channels, height, width) tensor."""

    def __init__(self, pixels: Tensor) -> None:
        if pixels.ndim != 3:
            raise ValueError(f"image must be (channels, height, width), got shape {tuple(pixels.shape)}")
        if 0 in pixels.shape:
            raise ValueError(f"image must have at least one pixel, got shape {tuple(pixels.shape)}")
        if not pixels.is_floating_point() and pixels.dtype not in FULL_SCALE:
            raise ValueError(f"image must be float in [-1, 1], uint8 or uint16, got {pixels.dtype}")
        self.pixels = pixels

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.pixels.shape[2], self.pixels.shape[1]

    def read(self, region: Region, size: tuple[int, int], *, antialias: bool = False) -> Tensor:
        """The region resampled bilinearly; what lies outside of the image or of ``region.within`` is 0."""
        region = Region.of(region)
        frame = _whole_pixels(region.box)
        canvas = _cut(self.pixels, frame, region.visible(self.size))
        offset = (region.left - frame[0], region.top - frame[1])
        return resample(canvas, Region(*offset, region.width, region.height), size, antialias=antialias)


def as_source(image: Tensor | ImageSource) -> ImageSource:
    """A (channels, height, width) tensor as an image in memory; a source as it is."""
    return TensorImage(image) if isinstance(image, Tensor) else image


def as_sources(images: Tensor | Sequence[ImageSource]) -> Sequence[ImageSource]:
    """A batch tensor (B, channels, H, W) as images in memory; sources as they are."""
    if isinstance(images, Tensor):
        if images.ndim != 4:
            raise ValueError(f"images must be (batch, channels, height, width), got {tuple(images.shape)}")
        images = [TensorImage(pixels) for pixels in images]
    for image in images:
        if not isinstance(image, ImageSource):
            raise TypeError(f"images must be a tensor or a list of ImageSource, got {type(image).__name__}")
    if not images:
        raise ValueError("images must hold at least one image, got none")
    return images


def resample(pixels: Tensor, region: Region, size: tuple[int, int], *, antialias: bool) -> Tensor:
    """Bilinear samples of ``region`` (it may begin and end between pixels) on a grid of ``size`` (w, h).

    Half-pixel centres. Without antialiasing two pixels an axis are mixed, however much the region shrinks.
    """
    whole = region.box == (0, 0, pixels.shape[-1], pixels.shape[-2])
    if whole and size == (pixels.shape[-1], pixels.shape[-2]):
        return pixels
    if whole:
        batch = F.interpolate(pixels[None], size[::-1], mode="bilinear", align_corners=False, antialias=antialias)
        return batch[0]
    rows = _resample_axis(pixels, -2, region.top, region.height, size[1], antialias)
    return _resample_axis(rows, -1, region.left, region.width, size[0], antialias)


def _whole_pixels(box: Box) -> tuple[int, int, int, int]:
    return math.floor(box[0]), math.floor(box[1]), math.ceil(box[2]), math.ceil(box[3])


def _cut(pixels: Tensor, frame: tuple[int, int, int, int], visible: Box | None) -> Tensor:
    """The pixels of ``frame``, zero where they cannot be seen."""
    left, top, right, bottom = frame
    if visible is None:
        return to_unit_range(pixels[:, :1, :1]).new_zeros(pixels.shape[0], bottom - top, right - left)
    x0, y0, x1, y1 = _whole_pixels(visible)
    seen = to_unit_range(pixels[:, y0:y1, x0:x1])
    margins = (x0 - left, right - x1, y0 - top, bottom - y1)
    return F.pad(seen, margins) if any(margins) else seen


def _resample_axis(pixels: Tensor, axis: int, start: float, extent: float, size: int, antialias: bool) -> Tensor:
    """Triangle-weighted samples along one axis; F.interpolate cannot begin between two pixels."""
    length = pixels.shape[axis]
    scale = extent / size
    reach = max(scale, 1.0) if antialias else 1.0
    centres = start + (torch.arange(size, dtype=torch.float64) + 0.5) * scale
    if not antialias:  # replicates the border pixels
        centres = centres.clamp(0.5, length - 0.5)
    first = torch.ceil(centres - reach - 0.5)
    taps = first[:, None] + torch.arange(math.ceil(2 * reach) + 1)
    weights = (1 - (taps + 0.5 - centres[:, None]).abs() / reach).clamp(min=0)
    weights = weights * ((taps >= 0) & (taps < length))
    weights = (weights / weights.sum(1, keepdim=True)).to(pixels)
    index = taps.clamp(0, length - 1).long().to(pixels.device)
    shape = [size if dim == pixels.ndim + axis else 1 for dim in range(pixels.ndim)]
    return sum(
        (pixels.index_select(axis, index[:, tap]) * weights[:, tap].view(shape) for tap in range(taps.shape[1])),
        start=pixels.new_zeros(()),
    )
