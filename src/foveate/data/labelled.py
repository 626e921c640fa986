"""Data sets of image files: a folder for each class, a list in a table, and what published ones have in common."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset

from foveate.data.examples import Example, Split
from foveate.data.files import check_folder, contents, folders_in, images_in, in_threads, relative_name
from foveate.data.manifests import Row, read_manifest
from foveate.data.splits import SPLIT_NAMES, Shares, check_has_split, check_not_empty, check_split
from foveate.geometry import Region, intersect
from foveate.readers import open_image
from foveate.sources import ImageSource, TensorImage

Box = tuple[float, float, float, float]
"""left, top, width, height"""
Size = tuple[int, int]
"""width, height"""

# How a whole file ends, for the formats that most are in.
ENDINGS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82"}


@dataclass(frozen=True, slots=True)
class Sample:
    """An image file, its class, and the objects that are known in it, in the file's pixels.

    ``crop`` is a part of the file, in whole pixels, that is the image alone: what lies outside is not seen.
    """

    path: Path
    label: int
    boxes: tuple[Box, ...] = ()
    crop: tuple[int, int, int, int] | None = None


Locate = Callable[[Sample, Size], Sequence[Box]]
"""Reads the boxes of an image of this size when it is asked for: annotations can be too many to be read ahead."""


class LabelledImages(Dataset[Example]):
    """Image files with a class. They are decoded when asked for, and so in the workers of a loader.

    Asking for a file that cannot be read is a ``ValueError`` or a ``FileNotFoundError`` that names it.
    ``channels`` is what all images are turned to, 1 or 3; None keeps what the files have.
    """

    def __init__(
        self,
        samples: Iterable[Sample],
        classes: Sequence[str],
        *,
        root: Path,
        channels: int | None = 3,
        locate: Locate | None = None,
    ) -> None:
        if channels not in (None, 1, 3):
            raise ValueError(f"channels must be 1, 3 or None, got {channels}")
        self.samples, self.classes = tuple(samples), tuple(classes)
        self.root, self.channels, self.locate = root, channels, locate

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Example:
        sample = self.samples[index]
        source = self._open(sample.path)
        if sample.crop and not _contains(source.size, sample.crop):
            raise ValueError(
                f"{sample.path} must contain the crop {sample.crop}, got an image of {source.size} pixels"
            )
        boxes = [*sample.boxes, *(self.locate(sample, source.size) if self.locate else ())]
        seen = _boxes_within(boxes, Region.of(sample.crop or (0, 0, *source.size)))
        return Example(_pixels(source, sample.crop), sample.label, seen, relative_name(sample.path, self.root))

    def _open(self, path: Path) -> ImageSource:
        try:
            return open_image(path, channels=self.channels)
        except Exception as error:  # decoders meet damage with errors of every kind, and few name the file
            if isinstance(error, (ValueError, FileNotFoundError)) and str(path) in str(error):
                raise
            raise ValueError(f"{path} must be a whole image, got a damaged one: {error}") from error


def _contains(size: Size, crop: tuple[int, int, int, int]) -> bool:
    left, top, width, height = crop
    return left >= 0 and top >= 0 and min(width, height) > 0 and left + width <= size[0] and top + height <= size[1]


def _boxes_within(boxes: Iterable[Box], frame: Region) -> Tensor:
    """What of the boxes can be seen in a part of the image, in its pixels."""
    seen = [intersect(Region(*box).box, frame.box) for box in boxes]
    rows = [(b[0] - frame.left, b[1] - frame.top, b[2] - b[0], b[3] - b[1]) for b in seen if b]
    return torch.tensor(rows, dtype=torch.float32).reshape(-1, 4)


def _pixels(source: ImageSource, crop: tuple[int, int, int, int] | None) -> Tensor | ImageSource:
    """An image in memory as its pixels; one that is read piece by piece as it is, or its crop."""
    if crop is None:
        return source.pixels if isinstance(source, TensorImage) else source
    left, top, width, height = crop
    if isinstance(source, TensorImage):
        return source.pixels[:, top : top + height, left : left + width].contiguous()
    return source.read(Region(*crop), (width, height))


def unreadable(samples: Iterable[Sample], *, advance: Callable[[], object] | None = None) -> list[tuple[Path, str]]:
    """Every file that cannot be read, and why; ``advance`` is called once for each file that was looked at.

    Looks at the head and the tail of a file, and decodes only what looks cut off. Damage in the middle shows when the
    image is read.
    """
    Image.preinit()  # or else threads would race to load the decoders
    paths = list(dict.fromkeys(sample.path for sample in samples))
    found = []
    for path, reason in zip(paths, in_threads(_fault, paths), strict=True):
        if reason:
            found.append((path, reason))
        if advance:
            advance()
    return found


def _fault(path: Path) -> str:
    """Why a file cannot be read; nothing where it seems that it can."""
    if not path.is_file():
        return "no such file"
    try:
        if path.stat().st_size == 0:
            return "an empty file"
        with Image.open(path) as image:
            ending = ENDINGS.get(image.format or "", b"")
        if not _ends_with(path, ending):
            open_image(path)
    except UnidentifiedImageError:
        return "not an image that Pillow knows"
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        return f"too large to be decoded whole: {error}"
    except Exception as error:  # as in LabelledImages: decoders meet damage with errors of every kind
        return f"damaged: {error.__cause__ or error}"
    return ""


def _ends_with(path: Path, ending: bytes) -> bool:
    with path.open("rb") as file:
        file.seek(-min(len(ending), path.stat().st_size), os.SEEK_END)
        return file.read() == ending if ending else True


def class_folders(
    root: str | Path,
    split: Split,
    *,
    validation: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
    channels: int | None = 3,
) -> LabelledImages:
    """Images in a folder for each class, ``root/<class>/...``, or in such folders for each split.

    Splits are the folders train; val, valid or validation; test. Without them ``validation`` and ``test`` are drawn
    as ``Shares`` tell; without one for validation alone it is drawn from train. Classes are sorted as text.
    """
    root = Path(root)
    check_split(split)
    check_folder(root)
    own = _split_folders(root)
    shares = Shares(validation=0 if "validation" in own else validation, test=0 if own else test, seed=seed)
    own = own or {"train": root}
    check_has_split(root, split, own, shares)
    classes = _class_names(root, own)
    home = own.get(split) or own["train"]
    samples = [sample for label, name in enumerate(classes) for sample in _class_samples(home / name, label)]
    if home == own.get("train"):
        _check_each_class(home, classes, samples)
        chosen = [sample for sample in samples if shares.split_of(relative_name(sample.path, home)) == split]
    else:
        chosen = samples
    check_not_empty(home, split, len(chosen), len(samples))
    return LabelledImages(chosen, classes, root=root, channels=channels)


def _split_folders(root: Path) -> dict[Split, Path]:
    """The folders of the splits; none where the folders are classes."""
    folders = folders_in(root)
    named = [
        (SPLIT_NAMES[folder.name.casefold()], folder) for folder in folders if folder.name.casefold() in SPLIT_NAMES
    ]
    found = dict(named)
    if len(found) < len(named):
        names = ", ".join(folder.name for _, folder in named)
        raise ValueError(f"{root} must have one folder for each split, got {names}")
    # A class may be called "test"; a split stands beside train, or beside nothing but splits.
    return found if "train" in found or len(named) == len(folders) else {}


def _class_names(root: Path, own: dict[Split, Path]) -> list[str]:
    """The names of the training folders, or of all where there is no training; the other splits can have no more."""
    names = {split: [folder.name for folder in folders_in(home)] for split, home in own.items()}
    classes = sorted(set(names["train"] if "train" in names else chain(*names.values())))
    if len(classes) < 2:
        where = own.get("train", root)
        found = f"only {classes[0]!r}" if classes else contents(where)
        raise ValueError(f"{where} must have a folder for each of at least 2 classes, got {found}")
    for split, found_names in names.items():
        new = sorted(set(found_names) - set(classes))
        if new:
            raise ValueError(f"{own[split]} must have the classes of train, got also {', '.join(map(repr, new))}")
    return classes


def _class_samples(folder: Path, label: int) -> Iterator[Sample]:
    if folder.is_dir():
        yield from (Sample(path, label) for path in images_in(folder))


def _check_each_class(home: Path, classes: Sequence[str], samples: Iterable[Sample]) -> None:
    seen = {sample.label for sample in samples}
    empty = [name for label, name in enumerate(classes) if label not in seen]
    if empty:
        raise ValueError(f"{home} must have images in each class's folder, got none in {', '.join(map(repr, empty))}")


def manifest(
    path: str | Path,
    split: Split,
    *,
    validation: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
    channels: int | None = 3,
    allow_missing: bool = False,
) -> LabelledImages:
    """Images that a CSV or Parquet file lists: path (from its own folder), label, and, if known, split and a box.

    A box is left, top, width, height in pixels; a path may have several rows, one for each box. Labels are names,
    sorted, or by number where all are integers. Without the column split, ``Shares`` are drawn as for folders.
    ``allow_missing`` leaves it to reading to find files that do not exist.
    """
    path = Path(path)
    check_split(split)
    rows = read_manifest(path)
    classes = _label_order(path, rows)
    own = {row.split for row in rows if row.split}
    shares = Shares(validation=0 if "validation" in own else validation, test=0 if own else test, seed=seed)
    check_has_split(path, split, own or {"train"}, shares)
    chosen = [row for row in _merged(path, rows) if _split_of(row[0], shares) == split]
    check_not_empty(path, split, len(chosen), len(rows))
    labels = {name: label for label, name in enumerate(classes)}
    samples = [Sample(path.parent / row.path, labels[row.label], boxes) for row, boxes in chosen]
    if not allow_missing:
        check_listed(path, samples)
    return LabelledImages(samples, classes, root=path.parent, channels=channels)


def _label_order(path: Path, rows: Iterable[Row]) -> list[str]:
    names = {row.label for row in rows}
    if len(names) < 2:
        raise ValueError(f"{path} must have at least 2 classes, got only {names.pop()!r}")
    if all(re.fullmatch(r"[+-]?\d+", name) for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def _split_of(row: Row, shares: Shares) -> Split:
    if row.split in ("validation", "test"):
        return row.split
    return shares.split_of(Path(row.path).as_posix())


def _merged(path: Path, rows: Iterable[Row]) -> list[tuple[Row, tuple[Box, ...]]]:
    """Each file once, with the boxes of all of its rows."""
    first: dict[Path, Row] = {}
    boxes: dict[Path, list[Box]] = {}
    for row in rows:
        before = first.setdefault(Path(row.path), row)
        if (before.label, before.split) != (row.label, row.split):
            raise ValueError(
                f"{path}, row {row.number} must have the label and split of row {before.number}, "
                f"which is of the same file {row.path}, got {row.label!r} and {row.split!r}"
            )
        if before is not row and not (before.box and row.box):
            raise ValueError(f"{path} must list a file once, or once a box, got {row.path} in row {row.number} again")
        boxes.setdefault(Path(row.path), []).extend([row.box] if row.box else [])
    return [(row, tuple(boxes[name])) for name, row in first.items()]


def check_listed(path: Path, samples: Sequence[Sample]) -> None:
    """Refuses a list of files that do not exist."""
    there = in_threads(Path.is_file, [sample.path for sample in samples])
    missing = [
        relative_name(sample.path, path.parent) for sample, found in zip(samples, there, strict=True) if not found
    ]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise FileNotFoundError(
            f"{path} must list files that exist, got {len(missing)} of {len(samples)} that do not: "
            f"{', '.join(missing[:3])}{more}"
        )
