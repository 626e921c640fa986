"""A walk as a picture: the regions that were looked at, drawn on the image."""

from __future__ import annotations

import torch
from PIL import Image, ImageDraw, ImageFont

from foveate.geometry import Region
from foveate.sources import ImageSource
from foveate.traversal import Walk

# One colour a level, from the second; told apart in colour blindness too (Okabe and Ito).
COLOURS = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#cc79a7")


def overlay(source: ImageSource, walk: Walk, *, index: int = 0, longest_side: int = 1024) -> Image.Image:
    """Image ``index`` of a walk with every opened region outlined, and under it how much its glimpse counted."""
    scale = min(1.0, longest_side / max(source.size))
    size = (max(1, round(source.size[0] * scale)), max(1, round(source.size[1] * scale)))
    picture = _picture(source, size)
    draw = ImageDraw.Draw(picture)
    width = max(2, max(size) // 300)
    font = ImageFont.load_default(size=max(12, max(size) // 60))
    weights = walk.weights[index].tolist()[1:]
    for depth, level in enumerate(walk.levels[1:]):
        colour = COLOURS[depth % len(COLOURS)]
        for box in level.boxes[index].tolist():
            weight, seen = weights.pop(0), Region.of(box).visible(source.size)
            if seen is None:  # a cell in the blank border of a tiny image
                continue
            left, top, right, bottom = (value * scale for value in seen)
            draw.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=colour, width=width)
            at = (left + 2 * width, top + width)
            draw.text(at, f"{weight:.2f}", fill=colour, font=font, stroke_width=2, stroke_fill="black")
    return picture


def _picture(source: ImageSource, size: tuple[int, int]) -> Image.Image:
    """The whole image in RGB: its first three bands, or its first one in grey."""
    pixels = source.read(Region.whole(source.size), size)
    colour = pixels[:3] if len(pixels) >= 3 else pixels[:1].expand(3, -1, -1)
    bytes_ = ((colour + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
    return Image.fromarray(bytes_.permute(1, 2, 0).contiguous().numpy())
