"""The demo set: large scenes with one garment among fragments of others, drawn when they are asked for.

The garments are a part of Fashion-MNIST (Copyright 2017 Zalando SE, MIT licence): 400 of each class for training, 100
for testing. Which one a scene shows is its label; where it lies is known, for evaluation only.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import Dataset

from foveate.data.examples import SPLITS, Example, Split
from foveate.data.splits import check_split

CLASSES = (
    "t-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
SIDE = 28
GROUND = 24

# Of each class's garments for training, the share that scenes of the validation split show and training never does.
HELD_OUT = 0.1

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, slots=True)
class SceneOptions:
    """How scenes are drawn. ``scale`` is the range of a garment's magnification, ``fragments`` how many there are."""

    side: int = 512
    objects: int = 1
    scale: tuple[float, float] = (2.0, 3.0)
    fragments: int = 40
    noise: float = 12.0

    def __post_init__(self) -> None:
        largest = round(SIDE * self.scale[1])
        if self.side < 2 * largest:
            raise ValueError(f"side must be at least twice the largest garment, {2 * largest} px, got {self.side}")
        if self.objects < 1 or self.fragments < 0:
            raise ValueError(
                f"a scene must have an object and no negative fragments, got {self.objects}, {self.fragments}"
            )
        if not 0 < self.scale[0] <= self.scale[1]:
            raise ValueError(f"scale must be a range of positive numbers, got {self.scale}")


class GarmentScenes(Dataset[Example]):
    """``count`` scenes; scene i is the same whenever, wherever and in whatever order it is drawn."""

    classes: Sequence[str] = CLASSES

    def __init__(
        self,
        split: Split,
        count: int,
        *,
        seed: int = 0,
        options: SceneOptions | None = None,
        folder: str | Path | None = None,
    ) -> None:
        check_split(split)
        self.split, self.count, self.seed = split, count, seed
        self.options = options or SceneOptions()
        garments, labels = embedded(split) if folder is None else read_idx(Path(folder), split)
        kept = _of_split(labels, split)
        self.garments, self.labels = garments[kept], labels[kept]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < self.count:
            raise IndexError(f"scene must be one of {self.count}, got {index}")
        draw = np.random.default_rng([self.seed, index, SPLITS.index(self.split)])
        label = int(draw.integers(len(CLASSES)))
        canvas = self._ground(draw)
        boxes = self._place(draw)
        for _ in range(self.options.fragments):
            self._scatter(canvas, boxes, draw)
        for left, top, size, _ in boxes:
            garment = self.garments[draw.choice(np.flatnonzero(self.labels == label))]
            _paint(canvas, _magnify(garment, size), left, top)
        return Example(torch.from_numpy(canvas)[None], label, torch.tensor(boxes), f"{self.split}/{index}")

    def _ground(self, draw: np.random.Generator) -> Bytes:
        """Dark, with uniform noise: normal noise would take most of the time that a scene takes."""
        spread = min(GROUND, round(self.options.noise * 3**0.5))
        shape = (self.options.side, self.options.side)
        return draw.integers(GROUND - spread, GROUND + spread + 1, shape, dtype=np.uint8)

    def _place(self, draw: np.random.Generator) -> list[tuple[int, int, int, int]]:
        """Squares for the objects that do not overlap; fewer than asked for, where there is no room."""
        boxes: list[tuple[int, int, int, int]] = []
        for _ in range(100 * self.options.objects):
            size = round(SIDE * draw.uniform(*self.options.scale))
            left, top = (int(v) for v in draw.integers(0, self.options.side - size + 1, 2))
            if all(_apart((left, top, size), box) for box in boxes):
                boxes.append((left, top, size, size))
            if len(boxes) == self.options.objects:
                break
        return boxes

    def _scatter(self, canvas: Bytes, boxes: Sequence[tuple[int, ...]], draw: np.random.Generator) -> None:
        """A quarter of any garment, at any garment's scale, somewhere beside the objects."""
        garment = self.garments[draw.integers(len(self.garments))]
        row, column = draw.integers(0, 2, 2) * (SIDE // 2)
        size = round(SIDE // 2 * draw.uniform(*self.options.scale))
        left, top = (int(v) for v in draw.integers(0, self.options.side - size + 1, 2))
        if all(_apart((left, top, size), box) for box in boxes):
            _paint(canvas, _magnify(garment[row : row + SIDE // 2, column : column + SIDE // 2], size), left, top)


def _of_split(labels: Bytes, split: Split) -> npt.NDArray[np.bool_]:
    """Which garments a split draws from: validation has the last ones of each class that training leaves."""
    if split == "test":
        return np.ones(len(labels), bool)
    held_out = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        each = np.flatnonzero(labels == label)
        held_out[each[round(len(each) * (1 - HELD_OUT)) :]] = True
    return held_out if split == "validation" else ~held_out


def _apart(square: tuple[int, int, int], box: Sequence[int]) -> bool:
    left, top, size = square
    return left + size <= box[0] or box[0] + box[2] <= left or top + size <= box[1] or box[1] + box[3] <= top


def _magnify(garment: Bytes, size: int) -> Bytes:
    return np.asarray(Image.fromarray(garment).resize((size, size), Image.Resampling.BILINEAR))


def _paint(canvas: Bytes, patch: Bytes, left: int, top: int) -> None:
    """Light on a dark ground: the brighter of the two stays."""
    view = canvas[top : top + patch.shape[0], left : left + patch.shape[1]]
    np.maximum(view, patch, out=view)


@cache
def embedded(split: Split) -> tuple[Bytes, Bytes]:
    """The garments of the package (N, 28, 28) and their labels (N,); equally many of each class."""
    with Image.open(Path(__file__).parent / f"garments-{'test' if split == 'test' else 'train'}.png") as file:
        sheet = np.array(file)
    rows, columns = sheet.shape[0] // SIDE, sheet.shape[1] // SIDE
    garments = sheet.reshape(rows, SIDE, columns, SIDE).transpose(0, 2, 1, 3).reshape(-1, SIDE, SIDE)
    return garments, np.repeat(np.arange(len(CLASSES), dtype=np.uint8), len(garments) // len(CLASSES))


def read_idx(folder: Path, split: Split) -> tuple[Bytes, Bytes]:
    """The whole of Fashion-MNIST from the files in which it is distributed, packed or unpacked."""
    name = "t10k" if split == "test" else "train"
    images, labels = (_read_idx_file(folder, f"{name}-{part}-ubyte") for part in ("images-idx3", "labels-idx1"))
    if len(images) != len(labels):
        raise ValueError(f"{folder} must have as many labels as images, got {len(labels)} and {len(images)}")
    return images, labels


def _read_idx_file(folder: Path, name: str) -> Bytes:
    # Debian's package and torchvision's folder both have these names.
    for path in (folder / f"{name}.gz", folder / name, folder / "FashionMNIST" / "raw" / name):
        if path.is_file():
            data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            dimensions = data[3] if len(data) > 4 else 0
            shape = np.frombuffer(data, ">i4", dimensions, 4) if len(data) >= 4 + 4 * dimensions else np.array([0])
            if data[:3] != b"\0\0\x08" or int(np.prod(shape)) != len(data) - 4 - 4 * dimensions:
                raise ValueError(f"{path} must be a whole file of bytes in IDX format, got something else")
            return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
    raise FileNotFoundError(f"Fashion-MNIST must be in {folder}, got no {name} or {name}.gz there")
