"""Boxes in XML, as PASCAL VOC, ImageNet and Stanford Dogs have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

from foveate.data.labelled import Box, Size


def read_boxes(path: Path, size: Size, wanted: Callable[[str], bool] = lambda _name: True) -> list[Box]:
    """The boxes of the objects with wanted names, in the pixels of an image of this size."""
    root = _parse(path)
    try:
        # Some images were annotated at another size than they are published in.
        width, height = (int(root.findtext(f"size/{side}", "0")) for side in ("width", "height"))
        scale = (size[0] / width, size[1] / height) if width and height else (1.0, 1.0)
        found = [entry for entry in root.iter("object") if wanted(entry.findtext("name", "").strip())]
        return [_box(entry, *scale) for entry in found]
    except ValueError as error:
        raise ValueError(f"{path} must have numbers for sizes and boxes, got something else: {error}") from error


def _parse(path: Path) -> ElementTree.Element:
    """The document's root. Declarations of its type are refused: entities can grow without bounds."""
    if not path.is_file():
        raise FileNotFoundError(f"annotation must be an XML file, got no file {path}")
    try:
        text = path.read_text(encoding="utf-8")
        if "<!DOCTYPE" in text:
            raise ValueError("a DOCTYPE")
        return ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise ValueError(f"{path} must be plain XML in UTF-8, got something else: {error}") from error


def _box(entry: ElementTree.Element, across: float, down: float) -> Box:
    left, top, right, bottom = (
        float(entry.findtext(f"bndbox/{side}", "")) for side in ("xmin", "ymin", "xmax", "ymax")
    )
    return left * across, top * down, (right - left) * across, (bottom - top) * down
