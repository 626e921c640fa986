"""Folders of files: what lies in them, in a stable order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

# What Pillow decodes to pixels; not the videos, documents and weather grids that it can merely tell apart.
EXTENSIONS = frozenset((
    ".apng", ".avif", ".bmp", ".dib", ".gif", ".j2c", ".j2k", ".jfif", ".jp2", ".jpc", ".jpe", ".jpeg", ".jpf",
    ".jpg", ".jpx", ".pbm", ".pcx", ".pgm", ".png", ".pnm", ".ppm", ".qoi", ".tga", ".tif", ".tiff", ".webp",
))  # fmt: skip
THREADS = 16

Item = TypeVar("Item")
Result = TypeVar("Result")


def check_folder(root: Path) -> None:
    """Refuses what is no folder."""
    if not root.is_dir():
        raise FileNotFoundError(f"data set must be a folder, got no folder {root}")


def contents(folder: Path, most: int = 5) -> str:
    """The first few things in a folder, for errors about a wrong one."""
    if not folder.is_dir():
        return f"no folder {folder}"
    names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more or "an empty folder"


def first_in(folder: Path, names: Iterable[str]) -> Path | None:
    """The first of these files or folders that is there: data sets are unpacked in more than one way."""
    return next((folder / name for name in names if (folder / name).exists()), None)


def find_in(folder: Path, *names: str) -> Path:
    """The first of these files or folders that is there; where there is none, the error names the first."""
    check_folder(folder)
    found = first_in(folder, names)
    if found is None:
        raise FileNotFoundError(f"{folder} must have {names[0]}, got {contents(folder)}")
    return found


def folders_in(folder: Path) -> list[Path]:
    """The folders in a folder, sorted; hidden ones are left out."""
    entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    return [Path(entry.path) for entry in entries if _is_folder(entry) and not entry.name.startswith(".")]


def images_in(folder: Path, above: frozenset[str] = frozenset()) -> Iterator[Path]:
    """The image files in a folder and its sub-folders, sorted; hidden ones are left out.

    Links are followed, but not in circles. A link to nothing counts as a file: it is to be reported, not lost.
    """
    above = above | {os.path.realpath(folder)}
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name.startswith("."):
            continue
        if _is_folder(entry):
            if os.path.realpath(entry.path) not in above:
                yield from images_in(Path(entry.path), above)
        elif Path(entry.name).suffix.casefold() in EXTENSIONS:
            yield Path(entry.path)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def relative_name(path: Path, root: Path) -> str:
    """A file's name inside a folder, with slashes on every system; its whole path where it lies elsewhere."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()


def in_threads(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Results in the order of the items: for reading very many small files, which is mostly waiting."""
    with ThreadPoolExecutor(THREADS) as pool:
        for start in range(0, len(items), 1024):  # a million at once would be a million futures in memory
            yield from pool.map(function, items[start : start + 1024])
