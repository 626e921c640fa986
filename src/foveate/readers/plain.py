"""JPEG, PNG and whatever else Pillow decodes; held in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from foveate.sources import TensorImage

# Pillow's modes -> the mode to read them in. Transparency says nothing about what was seen, and is dropped.
MODES = {"L": "L", "LA": "L", "1": "L", "I;16": "I;16"}


def open_image(path: Path) -> TensorImage:
    """The decoded image, turned as its EXIF orientation says."""
    try:
        with Image.open(path) as file:
            image = ImageOps.exif_transpose(file)
            pixels = np.array(image.convert(MODES.get(image.mode, "RGB")))
    except UnidentifiedImageError as error:
        raise ValueError(f"{path} must be an image that Pillow knows, got another format") from error
    except OSError as error:
        raise ValueError(f"{path} must be a whole image, got a damaged one: {error}") from error
    channels_first = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return TensorImage(torch.from_numpy(np.ascontiguousarray(channels_first)))
