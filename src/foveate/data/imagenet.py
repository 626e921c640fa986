"""ImageNet's ILSVRC2012: folders of synsets as in the original archives, or what Kaggle hands out."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foveate.class_orders import imagenet_names
from foveate.data.annotations import read_boxes
from foveate.data.examples import Split
from foveate.data.files import contents, find_in, first_in, folders_in, images_in, relative_name
from foveate.data.labelled import Box, LabelledImages, Sample, Size
from foveate.data.matlab import read_mat
from foveate.data.splits import Shares, check_has_split, check_not_empty, check_split

SYNSET = re.compile(r"n\d{8}")
PARTS: dict[str, Split] = {"train": "train", "val": "test"}
INNER = ("", "CLS-LOC", "Data/CLS-LOC", "ILSVRC/Data/CLS-LOC")
KIT = ("", "data", "devkit/data", "ILSVRC2012_devkit_t12/data")
SOLUTION, MAPPING, ANNOTATIONS = "LOC_val_solution.csv", "LOC_synset_mapping.txt", "Annotations/CLS-LOC"
TRUTH, META = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"


def imagenet(
    root: str | Path, split: Split, *, validation: float = 0.0, seed: int = 0, channels: int | None = 3
) -> LabelledImages:
    """ILSVRC2012 in the folders train and val of root, or of Kaggle's ILSVRC/Data/CLS-LOC; labels are sorted synsets.

    ``test`` is the official validation part, on which papers report, since the official test part has no public
    labels; ``validation`` is a share of the training images. Images of val lie in a folder for each synset, or side
    by side together with Kaggle's LOC_val_solution.csv or the development kit ILSVRC2012_devkit_t12. Boxes are those
    of the folder Annotations/CLS-LOC; images have none where there is no such folder, and many have none in it.
    """
    check_split(split)
    home = _home(Path(root))
    own = {part for name, part in PARTS.items() if (home / name).is_dir()}
    shares = Shares(validation=validation, seed=seed)
    check_has_split(home, split, own, shares)
    trained = _synset_folders(home / "train")
    judged = _judged(home) if split == "test" else {}
    synsets = [folder.name for folder in trained] or _listed_synsets(home) or sorted(set(judged.values()))
    if split == "test":
        samples = chosen = _samples_of(judged, synsets, home / "val")
    else:
        samples = [Sample(path, label) for label, folder in enumerate(trained) for path in images_in(folder)]
        chosen = [item for item in samples if shares.split_of(relative_name(item.path, home / "train")) == split]
    check_not_empty(home, split, len(chosen), len(samples))
    boxes = _around(home, ANNOTATIONS)
    locate = _Annotations(boxes, tuple(synsets)) if boxes else None
    return LabelledImages(chosen, imagenet_names(synsets), root=home, channels=channels, locate=locate)


def _home(root: Path) -> Path:
    """The folder that has train and val, or one of them."""
    return find_in(root, *(f"{inner}/{part}".lstrip("/") for inner in INNER for part in PARTS)).parent


def _around(home: Path, *names: str) -> Path | None:
    """The first of these beside train and val, or farther up in Kaggle's folders."""
    places = [home, *(home.absolute().parents[:3] if home.name == "CLS-LOC" else ())]
    return next((found for found in (first_in(place, names) for place in places) if found), None)


def _synset_folders(folder: Path) -> list[Path]:
    """The folders of synsets, where there are such; training images are never in others."""
    if not folder.is_dir():
        return []
    found = [entry for entry in folders_in(folder) if SYNSET.fullmatch(entry.name)]
    if folder.name == "train" and len(found) < 2:
        raise FileNotFoundError(f"{folder} must have folders of synsets, n01440764 etc., got {contents(folder)}")
    return found


def _listed_synsets(home: Path) -> list[str]:
    """The synsets of Kaggle's list, where it is there: val alone need not have an image of each."""
    path = _around(home, MAPPING)
    return sorted(line.split()[0] for line in path.read_text("utf-8").splitlines() if line.strip()) if path else []


def _judged(home: Path) -> dict[Path, str]:
    """The images of the official validation part, and their synsets."""
    folders = _synset_folders(home / "val")
    if folders:
        return {path: folder.name for folder in folders for path in images_in(folder)}
    images = list(images_in(home / "val"))
    source = _around(home, SOLUTION, *(f"{inner}/{TRUTH}".lstrip("/") for inner in KIT))
    if source is None:
        raise FileNotFoundError(
            f"{home / 'val'} must have folders of synsets, or {SOLUTION} or {TRUTH} beside it, "
            f"got {contents(home / 'val')}"
        )
    truth = _read_solution(source) if source.name == SOLUTION else _read_kit(source)
    missing = [path.name for path in images if path.stem not in truth]
    if missing:
        raise ValueError(f"{source} must have a label for each image of {home / 'val'}, got none for {missing[0]}")
    return {path: truth[path.stem] for path in images}


def _read_solution(path: Path) -> dict[str, str]:
    """Kaggle's table: an image's name, and synset and box of each object in it."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file) if row][1:]
    for row in rows:
        if len(row) != 2 or not SYNSET.match(row[1]):
            raise ValueError(f"{path} must have an image and its synset in each row, got {row}")
    return {name: objects.split()[0] for name, objects in rows}


def _read_kit(path: Path) -> dict[str, str]:
    """The development kit: a number for each image in their order, and the synsets of the numbers in meta.mat."""
    meta = find_in(path.parent, META)
    try:
        rows: Any = read_mat(meta)["synsets"]
        synsets = {str(int(row["ILSVRC2012_ID"][0])): row["WNID"] for row in rows}
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{meta} must have synsets with ILSVRC2012_ID and WNID, got none: {error!r}") from error
    numbers = path.read_text(encoding="ascii").split()
    unknown = [number for number in numbers if number not in synsets]
    if unknown:
        raise ValueError(f"{path} must have the numbers of synsets in {META}, got {unknown[0]!r}")
    return {f"ILSVRC2012_val_{place:08d}": synsets[number] for place, number in enumerate(numbers, start=1)}


def _samples_of(judged: dict[Path, str], synsets: Sequence[str], where: Path) -> list[Sample]:
    labels = {synset: label for label, synset in enumerate(synsets)}
    new = sorted(set(judged.values()) - set(labels))
    if new:
        raise ValueError(f"{where} must have the synsets of train, got also {', '.join(new[:5])}")
    return [Sample(path, labels[synset]) for path, synset in judged.items()]


@dataclass(frozen=True, slots=True)
class _Annotations:
    """The boxes of an image's own synset, where it was annotated."""

    folder: Path
    synsets: tuple[str, ...]

    def __call__(self, sample: Sample, size: Size) -> list[Box]:
        synset = self.synsets[sample.label]
        name = f"{sample.path.stem}.xml"
        path = first_in(self.folder, (f"train/{synset}/{name}", f"val/{name}"))

        def is_own(found: str) -> bool:  # some dogs are annotated with their breed's name in place of the synset
            return found == synset or not SYNSET.fullmatch(found)

        return read_boxes(path, size, is_own) if path else []
