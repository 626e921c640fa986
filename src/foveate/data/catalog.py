"""Data sets by kind: what a recipe's [data] section says -> what to train on, and how it is prepared."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from foveate.data import published
from foveate.data.batches import Prepare
from foveate.data.elpv import SolarModules
from foveate.data.examples import LabelledData, Split
from foveate.data.garments import GarmentScenes, SceneOptions
from foveate.data.labelled import class_folders, manifest
from foveate.data.transforms import AUGMENTATIONS, Augmentation, Resized, training_transform


class _Files(Protocol):
    """A data set of image files in a folder."""

    def __call__(
        self, root: Path, split: Split, /, *, validation: float, seed: int, channels: int | None
    ) -> LabelledData: ...


FILES: dict[str, _Files] = {
    "folders": class_folders,
    "manifest": manifest,
    "imagenet": published.imagenet,
    "fmow": published.fmow,
    "fmow-crops": partial(published.fmow, crops=True),
    "cub": published.cub,
    "nabirds": published.nabirds,
    "dogs": published.dogs,
}
# Drawn on the fly: any number of images.
DRAWN = ("garments", "solar")
KINDS = ("auto", *FILES, *DRAWN)


@dataclass(frozen=True, kw_only=True, slots=True)
class DataOptions:
    """Which data set it is, what its images are resized to, and what is changed about them in training.

    ``kind`` auto is a manifest where DATA is a file, and class folders where it is a folder. ``size`` is the side, or
    height and width, that images are resized to; 0 leaves them as they are. ``validation`` is the share of the
    training images that is put aside where a data set has no validation split; with 0 nothing is kept apart, and the
    last model is the one that is kept. ``channels`` is 1 or 3; 0 keeps what files have. ``count`` images make an
    epoch of data that are drawn on the fly, ``validation_count`` their validation split; ``scene`` says how garments'
    scenes are drawn.
    """

    kind: str = "auto"
    size: int | tuple[int, int] = 448
    augmentation: Augmentation = "plain"
    antialias: bool = False
    channels: int = 3
    validation: float = 0.1
    seed: int = 0
    count: int = 10_000
    validation_count: int = 500
    scene: SceneOptions | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.size, int):
            object.__setattr__(self, "size", tuple(self.size))
        if self.kind not in KINDS:
            raise ValueError(f"data.kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.augmentation not in AUGMENTATIONS:
            raise ValueError(
                f"data.augmentation must be one of {', '.join(AUGMENTATIONS)}, got {self.augmentation!r}"
            )
        sides = (self.size,) if isinstance(self.size, int) else self.size
        if len(sides) > 2 or min(sides) < 0:
            raise ValueError(f"data.size must be a side, or height and width, in pixels, got {self.size}")
        if self.channels not in (0, 1, 3):
            raise ValueError(f"data.channels must be 1 or 3, or 0 to keep what files have, got {self.channels}")
        if not 0 <= self.validation < 1:
            raise ValueError(f"data.validation must be a share in [0, 1), got {self.validation}")
        if self.count < 1 or self.validation_count < 0:
            raise ValueError(f"data must have an image at least, got {self.count} and {self.validation_count}")
        if self.scene is not None and self.kind != "garments":
            raise ValueError(f"data.scene must go with the kind 'garments', got {self.kind!r}")

    @property
    def shape(self) -> tuple[int, int] | None:
        """Height and width that images are resized to, or None."""
        height, width = (self.size, self.size) if isinstance(self.size, int) else self.size
        return (height, width) if height else None


def open_split(options: DataOptions, where: Path | None, split: Split, *, count: int | None = None) -> LabelledData:
    """A split of the data set in the folder or file ``where``; garments need none, the package brings some.

    ``count`` is how many images are drawn, where they are drawn on the fly.
    """
    if count is None:
        count = options.count if split == "train" else options.validation_count
    if options.kind == "garments":
        return GarmentScenes(split, count, seed=options.seed, options=options.scene, folder=where)
    if where is None:
        raise ValueError(f"data must be a folder or a file for the kind {options.kind!r}, got none")
    if options.kind == "solar":
        return SolarModules(where, split, count, seed=options.seed, flips=split == "train")
    kind = options.kind
    if kind == "auto":
        kind = "folders" if where.is_dir() else "manifest"
    return FILES[kind](
        where, split, validation=options.validation, seed=options.seed, channels=options.channels or None
    )


def has_validation(options: DataOptions) -> bool:
    """Whether some images are kept apart to choose the best model by."""
    return bool(options.validation_count if options.kind in DRAWN else options.validation)


def for_training(options: DataOptions) -> Prepare:
    """What an image goes through in training."""
    return training_transform(options.augmentation, options.shape, antialias=options.antialias)


def for_evaluation(options: DataOptions) -> Prepare:
    """What an image goes through in evaluation."""
    return Resized(options.shape, options.antialias)
