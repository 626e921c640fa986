"""Functional Map of the World, fMoW-rgb: satellite images of 62 kinds of places, with boxes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from foveate.class_orders import FMOW
from foveate.data.examples import Split
from foveate.data.files import contents, find_in, first_in, folders_in, images_in, in_threads, relative_name
from foveate.data.labelled import Box, LabelledImages, Sample, Size
from foveate.data.splits import Shares, check_has_split, check_not_empty, check_split

# The last two are the names that the authors' script and the official ground truth give to the test part.
FOLDERS: dict[Split, tuple[str, ...]] = {
    "train": ("train",),
    "validation": ("val",),
    "test": ("test", "test_matched_with_gt", "test_gt"),
}
MAPPINGS = ("test_gt_mapping.json", "groundtruth/test_gt_mapping.json")
# From which share of the image's side on a box is enlarged by how much of its own side, both ends together.
CONTEXT = ((0.5, 0.15), (0.4, 0.2), (0.3, 0.3), (0.2, 0.5), (0.1, 1.0), (0.0, 2.0))
SMALLEST = 2  # boxes this narrow show nothing


def fmow(
    root: str | Path,
    split: Split,
    *,
    validation: float = 0.0,
    seed: int = 0,
    channels: int | None = 3,
    crops: bool = False,
) -> LabelledImages:
    """FMoW-rgb: ``<category>/<category>_<n>/*_rgb.jpg`` in the folders train, val and test of root, with JSON beside.

    The test part may also be as it is distributed, in numbered folders, with the ground truth's test_gt and
    test_gt_mapping.json in root. Labels are in the authors' order, whichever categories there are. Boxes are those of
    the image's own category. With ``crops`` each box is an image of its own, together with some of what lies around.
    ``validation`` is a share of the training images, by places, where there is no folder val.
    """
    check_split(split)
    home = _home(Path(root))
    own = {part for part, names in FOLDERS.items() if first_in(home, names)}
    shares = Shares(validation=0 if "validation" in own else validation, seed=seed)
    check_has_split(home, split, own, shares)
    part: Split = split if split in own else "train"
    places = list(_places(home, part))
    if part == "train":
        chosen = [place for place in places if shares.split_of(relative_name(place.images, home)) == split]
    else:
        chosen = places
    samples = [Sample(path, place.label) for place in chosen for path in _rgb_images(place.images)]
    notes = _Notes({place.images: place.notes for place in chosen if place.notes != place.images})
    if crops:
        samples = list(_crops(samples, notes))
    check_not_empty(home, split, len(samples), 0 if chosen else len(places))
    return LabelledImages(samples, FMOW, root=home, channels=channels, locate=None if crops else notes)


class _Place(NamedTuple):
    """A folder of images of one place, and the folder of what is known about them."""

    label: int
    images: Path
    notes: Path


def _home(root: Path) -> Path:
    names = [name for part in FOLDERS.values() for name in part]
    return find_in(root, *names, *(f"fMoW-rgb/{name}" for name in names)).parent


def _places(home: Path, part: Split) -> Iterator[_Place]:
    if part == "test" and not _has_categories(home / "test"):
        mapping = first_in(home, MAPPINGS)
        if mapping and (home / "test").is_dir():
            return _mapped(mapping, home / "test")
    folder = next((home / name for name in FOLDERS[part] if _has_categories(home / name)), None)
    if folder is None:
        where = find_in(home, *FOLDERS[part])
        hint = f", or have {MAPPINGS[0]} beside it" if part == "test" else ""
        raise FileNotFoundError(f"{where} must have a folder for each category{hint}, got {contents(where)}")
    return _in_categories(folder)


def _has_categories(folder: Path) -> bool:
    return folder.is_dir() and first_in(folder, FMOW) is not None


def _in_categories(folder: Path) -> Iterator[_Place]:
    for label, category in enumerate(FMOW):
        if (folder / category).is_dir():
            yield from (_Place(label, place, place) for place in folders_in(folder / category))


def _mapped(mapping: Path, images: Path) -> Iterator[_Place]:
    """The numbered folders of the test part, whose categories the official ground truth tells."""
    try:
        pairs = [
            (PurePosixPath(pair["input"]), PurePosixPath(pair["output"])) for pair in json.loads(mapping.read_bytes())
        ]
        labelled = sorted((truth.parent.name, truth.name, place.name) for truth, place in pairs)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise ValueError(f"{mapping} must be a list of inputs and outputs, got something else: {error!r}") from error
    for category, name, number in labelled:
        if category in FMOW:
            if not (images / number).is_dir():
                raise FileNotFoundError(f"{mapping} must list folders that exist, got no folder {images / number}")
            yield _Place(FMOW.index(category), images / number, mapping.parent / "test_gt" / category / name)


def _rgb_images(folder: Path) -> Iterator[Path]:
    """The images of a place, but not those that were made of multi-spectral ones."""
    return (path for path in images_in(folder) if path.name.endswith("_rgb.jpg"))


class _Note(NamedTuple):
    """What is known about an image: its size, and the boxes of its own category in its pixels."""

    size: Size
    boxes: list[Box]


@dataclass(frozen=True, slots=True)
class _Notes:
    """Finds and reads what is known about images; ``moved`` are the folders whose notes are in another one."""

    moved: Mapping[Path, Path]

    def __call__(self, sample: Sample, size: Size) -> list[Box]:
        """The boxes in an image of this size; none where nothing is known about it."""
        if not self.path_of(sample.path).is_file():
            return []
        note = self.read(sample)
        across, down = size[0] / note.size[0], size[1] / note.size[1]  # of images that were made smaller
        return [(x * across, y * down, width * across, height * down) for x, y, width, height in note.boxes]

    def path_of(self, image: Path) -> Path:
        """Images and notes have the same names, but for their folders' names in them."""
        images = image.parent
        notes = self.moved.get(images, images)
        return (notes / image.name.replace(images.name, notes.name, 1)).with_suffix(".json")

    def read(self, sample: Sample) -> _Note:
        """What is known about an image."""
        path = self.path_of(sample.path)
        if not path.is_file():
            raise FileNotFoundError(f"{sample.path} must have its boxes in a JSON file, got no file {path}")
        try:
            return _note(json.loads(path.read_bytes()), FMOW[sample.label])
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise ValueError(
                f"{path} must have img_width, img_height and bounding_boxes, got something else: {error!r}"
            ) from error


def _note(content: Any, category: str) -> _Note:
    listed = content["bounding_boxes"]
    entries = [listed] if isinstance(listed, dict) else listed
    own = [entry["box"] for entry in entries if entry["category"] == category and entry["ID"] != -1]
    boxes = [(float(left), float(top), float(width), float(height)) for left, top, width, height in own]
    size = int(content["img_width"]), int(content["img_height"])
    if min(size) < 1 or not all(math.isfinite(value) for box in boxes for value in box):
        raise ValueError(f"an image of {size} pixels with the boxes {boxes}")
    return _Note(size, boxes)


def _crops(samples: list[Sample], notes: _Notes) -> Iterator[Sample]:
    """The image of each box. It is all object: so the authors trained, and so boxes are left out."""
    for sample, note in zip(samples, in_threads(notes.read, samples), strict=True):
        yield from (Sample(sample.path, sample.label, crop=crop) for crop in _enlarged(note))


def _enlarged(note: _Note) -> Iterable[tuple[int, int, int, int]]:
    for box in note.boxes:
        left, top, width, height = (round(value) for value in box)
        if min(width, height) > SMALLEST:
            (left, right), (top, bottom) = _widen(left, width, note.size[0]), _widen(top, height, note.size[1])
            if left < right and top < bottom:
                yield left, top, right - left, bottom - top


def _widen(start: int, length: int, side: int) -> tuple[int, int]:
    """Both ends of a box along one axis together with what lies around; the smaller it is, the more of that."""
    share = length / side
    margin = int(length * next(more for least, more in CONTEXT if share >= least) / 2)
    return max(0, start - margin), min(side, start + length + margin)
