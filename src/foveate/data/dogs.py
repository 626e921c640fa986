"""Stanford Dogs: 120 breeds, with MATLAB's files as lists."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from foveate.data.annotations import read_boxes
from foveate.data.examples import Split
from foveate.data.files import find_in, first_in, folders_in, relative_name
from foveate.data.labelled import Box, LabelledImages, Sample, Size, check_listed
from foveate.data.matlab import read_mat
from foveate.data.splits import Shares, check_has_split, check_not_empty, check_split


def dogs(
    root: str | Path, split: Split, *, validation: float = 0.0, seed: int = 0, channels: int | None = 3
) -> LabelledImages:
    """Stanford Dogs: the folders Images and Annotation, and train_list.mat and test_list.mat, in root.

    Labels are in the order of the breeds' folders, which is that of the official numbers. Train and test are the
    official ones, ``validation`` is a share of train. Images have no boxes where there is no folder Annotation.
    """
    root = Path(root)
    check_split(split)
    images = find_in(root, "Images", "images/Images", "images")
    shares = Shares(validation=validation, seed=seed)
    check_has_split(root, split, ("train", "test"), shares)
    name = "test_list.mat" if split == "test" else "train_list.mat"
    path = find_in(root, name, f"lists/{name}")
    breeds = tuple(folder.name for folder in folders_in(images))
    samples = _listed(path, images, breeds)
    chosen = [s for s in samples if split == "test" or shares.split_of(relative_name(s.path, images)) == split]
    check_not_empty(root, split, len(chosen), len(samples))
    check_listed(path, chosen)
    boxes = first_in(root, ("Annotation", "annotations/Annotation", "annotations"))
    locate = _Annotations(boxes) if boxes else None
    return LabelledImages(chosen, breeds, root=images, channels=channels, locate=locate)


def _listed(path: Path, images: Path, breeds: tuple[str, ...]) -> list[Sample]:
    """The images of a list; the official numbers of their breeds count from 1."""
    lists = read_mat(path)
    if not {"file_list", "labels"} <= lists.keys():
        raise ValueError(f"{path} must have file_list and labels, got {', '.join(lists) or 'nothing'}")
    files, numbers = lists["file_list"], lists["labels"]
    if len(files) != len(numbers):
        raise ValueError(f"{path} must have a label for each file, got {len(numbers)} for {len(files)}")
    labels = {breed: label for label, breed in enumerate(breeds)}
    samples = []
    for file, number in zip(files, numbers, strict=True):
        label = labels.get(str(file).split("/")[0])
        if label is None or label + 1 != number:
            raise ValueError(
                f"{path} must number breeds in the order of the folders in {images}, got {number} for {file}"
            )
        samples.append(Sample(images / file, label))
    return samples


@dataclass(frozen=True, slots=True)
class _Annotations:
    """The boxes of the dogs in an image; their files have its name without an ending."""

    folder: Path

    def __call__(self, sample: Sample, size: Size) -> list[Box]:
        return read_boxes(self.folder / sample.path.parent.name / sample.path.stem, size)
