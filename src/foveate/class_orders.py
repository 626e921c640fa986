"""Which class each output of a published model stands for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from timm.data.imagenet_info import ImageNetInfo

# Alphabetical, but for one name that the authors' list has out of its place.
FMOW = tuple((Path(__file__).parent / "data" / "fmow_classes.txt").read_text(encoding="utf-8").split())


def published_order(name: str, num_classes: int) -> tuple[tuple[str, ...] | None, str]:
    """The class names that a published checkpoint assumes, where they are known here, and the rule of their order.

    CUB's and NABirds' names come with the data: ``names_by_first_image`` reads them.
    """
    if num_classes == 1000 and name in ("tnet_imagenet", "bagnet77"):
        return imagenet_names(ImageNetInfo().label_names()), "ImageNet's synsets, sorted"
    if num_classes == 62 and name in ("tnet_fmow", "efficientnet_b0"):
        return FMOW, "fMoW's categories in alphabetical order, but impoverished_settlement at 42"
    if not name.startswith(("tnet_b", "efficientnet_b")):
        return None, ""
    if num_classes == 200:
        return None, "CUB-200-2011's class number minus 1"
    if num_classes == 555:
        return None, "NABirds' classes in the order of their first image in images.txt"
    return None, ""


def imagenet_names(synsets: Sequence[str]) -> tuple[str, ...]:
    """What the synsets stand for, where they are ImageNet's 1000; other synsets are their own names."""
    imagenet = ImageNetInfo()
    if list(synsets) != imagenet.label_names():
        return tuple(synsets)
    names = [imagenet.index_to_description(i) for i in range(len(synsets))]
    # A bird and a machine are both described as crane, and names are to tell classes apart.
    alike = {name for name, count in Counter(names).items() if count > 1}
    return tuple(f"{name} ({synset})" if name in alike else name for name, synset in zip(names, synsets, strict=True))


def classes_by_first_image(folder: Path) -> dict[str, str]:
    """Class numbers and names of CUB or NABirds from the data set's own lists, in the order of the checkpoints.

    That is the order in which classes first appear in ``images.txt``; CUB lists its images class by class.
    """
    images = [image for image, _ in read_pairs(folder / "images.txt")]
    labels = dict(read_pairs(folder / "image_class_labels.txt"))
    names = dict(read_pairs(folder / "classes.txt"))
    missing = [image for image in images if image not in labels]
    if missing:
        raise ValueError(f"image_class_labels.txt must label every image, got none for {missing[0]}")
    found = dict.fromkeys(labels[image] for image in images)
    unnamed = [label for label in found if label not in names]
    if unnamed:
        raise ValueError(f"classes.txt must name every class, got none for {unnamed[0]}")
    return {label: names[label] for label in found}


def names_by_first_image(folder: str | Path) -> tuple[str, ...]:
    """Class names of CUB or NABirds in the order that the checkpoints assume."""
    return tuple(classes_by_first_image(Path(folder)).values())


def read_class_names(path: str | Path) -> tuple[str, ...]:
    """Names from a text file with one a line, or from the folder of CUB or NABirds."""
    path = Path(path)
    if path.is_dir():
        return names_by_first_image(path)
    if not path.is_file():
        raise FileNotFoundError(f"class names must be in a text file or a data set's folder, got no {path}")
    return tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """The lines of a list of CUB or NABirds: what comes before the first space, and what comes after it."""
    if not path.is_file():
        raise FileNotFoundError(f"data set must have {path.name}, got no file {path}")
    lines = (line.split(maxsplit=1) for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    return [(first, rest[0].strip() if rest else "") for first, *rest in lines]
