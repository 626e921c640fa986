"""Image files of every kind behind one function."""

from __future__ import annotations

from pathlib import Path

from foveate.readers import plain
from foveate.sources import ImageSource


def open_image(path: str | Path, *, channels: int | None = None) -> ImageSource:
    """The image in a file, to be read piece by piece: ``.size``, ``.read(region, size)``.

    ``channels`` turns grey into colour (3) or colour into grey (1); None keeps what the file has.

    For now every file is decoded whole, by Pillow.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"image must be a file, got no file {path}")
    return plain.open_image(path, channels)
