"""JPEG, PNG and whatever else Pillow decodes; held in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from foveate.sources import TensorImage

# Pillow's modes -> the mode to read them in. Transparency says nothing about what was seen, and is dropped.
GREY = {"L": "L", "LA": "L", "1": "L"}
DEEP = ("I;16", "I;16B", "I;16L", "I;16N")
UNREADABLE = ("I", "F")  # 32 bits a pixel, in units that Pillow does not tell


def open_image(path: Path, channels: int | None = None) -> TensorImage:
    """The decoded image, turned as its EXIF orientation says, with 1 or 3 channels if that is asked for."""
    if channels not in (None, 1, 3):
        raise ValueError(f"channels must be 1 or 3 for an image that Pillow reads, got {channels}")
    try:
        with Image.open(path) as file:
            pixels = _decode(ImageOps.exif_transpose(file), channels, path)
    except UnidentifiedImageError as error:
        raise ValueError(f"{path} must be an image that Pillow knows, got another format") from error
    except Image.DecompressionBombError as error:
        raise ValueError(f"{path} must be small enough to be decoded whole, got a huge one: {error}") from error
    except OSError as error:
        raise ValueError(f"{path} must be a whole image, got a damaged one: {error}") from error
    channels_first = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    if channels == 3 and len(channels_first) == 1:
        channels_first = channels_first.repeat(3, axis=0)
    return TensorImage(torch.from_numpy(np.ascontiguousarray(channels_first)))


def _decode(image: Image.Image, channels: int | None, path: Path) -> npt.NDArray[Any]:
    if image.mode in UNREADABLE:
        raise ValueError(f"{path} must have 8 or 16 bits a channel, got Pillow's mode {image.mode}")
    if image.mode in DEEP:
        return np.asarray(image).astype(np.uint16)
    return np.array(image.convert("L" if channels == 1 else GREY.get(image.mode, "RGB")))
