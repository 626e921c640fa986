"""CUB-200-2011 and NABirds: birds, in lists of one form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from foveate.class_orders import classes_by_first_image, read_pairs
from foveate.data.examples import Split
from foveate.data.files import find_in
from foveate.data.labelled import Box, LabelledImages, Sample, check_listed
from foveate.data.splits import Shares, check_has_split, check_not_empty, check_split

LIST = "images.txt"


def cub(
    root: str | Path, split: Split, *, validation: float = 0.0, seed: int = 0, channels: int | None = 3
) -> LabelledImages:
    """CUB-200-2011 in root or its folder CUB_200_2011; labels are the class numbers minus 1.

    Train and test are the official ones, ``validation`` is a share of train. Boxes are for evaluation only: the
    authors trained without them.
    """
    path = find_in(Path(root), LIST, f"CUB_200_2011/{LIST}")
    classes = read_pairs(path.with_name("classes.txt"))
    numbers = [number for number, _ in classes]
    if numbers != [str(label + 1) for label in range(len(numbers))]:
        raise ValueError(f"{path.with_name('classes.txt')} must number its classes 1, 2, 3 etc., got {numbers[:3]}")
    return _birds(path, dict(classes), split, Shares(validation=validation, seed=seed), channels)


def nabirds(
    root: str | Path, split: Split, *, validation: float = 0.0, seed: int = 0, channels: int | None = 3
) -> LabelledImages:
    """NABirds in root or its folder nabirds; labels are in the order in which classes first appear in images.txt.

    Train and test are the official ones, ``validation`` is a share of train. Boxes are for evaluation only: the
    authors trained without them.
    """
    path = find_in(Path(root), LIST, f"nabirds/{LIST}")
    classes = classes_by_first_image(path.parent)
    return _birds(path, classes, split, Shares(validation=validation, seed=seed), channels)


def _birds(
    path: Path, classes: Mapping[str, str], split: Split, shares: Shares, channels: int | None
) -> LabelledImages:
    check_split(split)
    check_has_split(path.parent, split, ("train", "test"), shares)
    images = _read_once(path)
    labels = _about(images, path.with_name("image_class_labels.txt"))
    parts = _about(images, path.with_name("train_test_split.txt"))
    boxes = _about(images, path.with_name("bounding_boxes.txt"))
    order = {number: label for label, number in enumerate(classes)}
    samples = []
    for image, name in images.items():
        if labels[image] not in order:
            raise ValueError(f"{path.with_name('classes.txt')} must name every class, got none for {labels[image]}")
        if _part(parts[image], name, shares) == split:
            file = path.parent / "images" / name
            samples.append(Sample(file, order[labels[image]], (_box(boxes[image], image, path),)))
    check_not_empty(path.parent, split, len(samples), len(images))
    check_listed(path, samples)
    return LabelledImages(samples, tuple(classes.values()), root=path.parent / "images", channels=channels)


def _read_once(path: Path) -> dict[str, str]:
    lines = read_pairs(path)
    found = dict(lines)
    if len(found) < len(lines):
        twice = next(image for image, count in Counter(image for image, _ in lines).items() if count > 1)
        raise ValueError(f"{path} must list each image once, got {twice} again")
    return found


def _about(images: Iterable[str], path: Path) -> dict[str, str]:
    """What a list says about each image."""
    found = _read_once(path)
    missing = [image for image in images if image not in found]
    if missing:
        raise ValueError(f"{path} must list every image of {LIST}, got no {missing[0]}")
    return found


def _part(is_training: str, name: str, shares: Shares) -> Split:
    if is_training not in ("0", "1"):
        raise ValueError(f"train_test_split.txt must have 0 or 1 for each image, got {is_training!r} for {name}")
    return shares.split_of(name) if is_training == "1" else "test"


def _box(text: str, image: str, path: Path) -> Box:
    try:
        left, top, width, height = map(float, text.split())
    except ValueError as error:
        where = path.with_name("bounding_boxes.txt")
        raise ValueError(f"{where} must have four numbers for each image, got {text!r} for {image}") from error
    return left, top, width, height
