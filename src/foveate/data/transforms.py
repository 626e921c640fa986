"""Examples -> what a model is given, in training and in evaluation; all randomness comes from the generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torchvision.transforms import v2  # type: ignore[import-untyped]

from foveate.data.augmentation import augment
from foveate.data.batches import Prepare
from foveate.data.examples import Example
from foveate.geometry import Region
from foveate.sources import ImageSource, TensorImage, to_unit_range

Augmentation = Literal["none", "flips", "plain", "photometric", "geometric"]
AUGMENTATIONS: tuple[Augmentation, ...] = ("none", "flips", "plain", "photometric", "geometric")


@dataclass(frozen=True, slots=True)
class Resized:
    """The whole image at ``size`` (height, width) in [-1, 1], bilinear; None leaves it as it is."""

    size: tuple[int, int] | None
    antialias: bool = False

    def __call__(self, example: Example, _generator: torch.Generator) -> Tensor | ImageSource:
        """An example, as evaluation sees it."""
        if self.size is None:
            return example.image
        source = _source(example)
        return source.read(Region.whole(source.size), self.size[::-1], antialias=self.antialias)


@dataclass(frozen=True, slots=True)
class Flipped:
    """As for evaluation, mirrored left to right and top to bottom in half of the cases each."""

    size: tuple[int, int] | None
    antialias: bool = False

    def __call__(self, example: Example, generator: torch.Generator) -> Tensor:
        """An example, at random."""
        image = Resized(self.size, self.antialias)(example, generator)
        axes = [axis for axis in (1, 2) if float(torch.rand((), generator=generator)) < 0.5]
        return _pixels(image).flip(axes)


@dataclass(frozen=True, slots=True)
class Plain:
    """Torchvision's usual training augmentation: a random crop, a flip, and mild changes of colour."""

    size: tuple[int, int]

    def __call__(self, example: Example, generator: torch.Generator) -> Tensor:
        """An example, at random."""
        image = _pixels(example.image)
        if image.dtype != torch.uint8:  # torchvision's other pixels are floats in [0, 1]
            image = (to_unit_range(image) + 1) / 2
        chain = [v2.RandomResizedCrop(self.size, scale=(0.5, 1.0), antialias=True), v2.RandomHorizontalFlip()]
        if len(image) in (1, 3):
            chain.append(v2.ColorJitter(brightness=0.2, contrast=0.2, saturation=0.2 if len(image) == 3 else None))
        with torch.random.fork_rng(devices=[]):  # torchvision draws from torch's own state
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            changed: Tensor = v2.Compose(chain)(image)
        return to_unit_range(changed) if changed.dtype == torch.uint8 else changed * 2 - 1


@dataclass(frozen=True, slots=True)
class Authors:
    """What TNet's authors trained with: see ``data.augmentation``.

    ``photometric`` crops keep a part of an object where objects are known; ``geometric`` ones take no notice of it.
    """

    size: tuple[int, int]
    kind: Literal["photometric", "geometric"]

    def __call__(self, example: Example, generator: torch.Generator) -> Tensor:
        """An example, at random."""
        unit = (to_unit_range(_pixels(example.image)) + 1) / 2
        if self.kind == "geometric":
            return augment(unit, self.size, generator, kind=self.kind)
        if len(unit) not in (1, 3):
            raise ValueError(f"augmentation 'photometric' must be of 1 or 3 channels, got {len(unit)}")
        objects = [(x, y, x + w, y + h) for x, y, w, h in example.boxes.tolist()]
        colours = unit.expand(3, -1, -1)  # a grey image has a hue and a saturation, too: none, whatever is done to it
        return augment(colours, self.size, generator, kind=self.kind, objects=objects)[: len(unit)]


def training_transform(kind: Augmentation, size: tuple[int, int] | None, *, antialias: bool) -> Prepare:
    """What a training example goes through."""
    if kind == "none":
        return Resized(size, antialias)
    if kind == "flips":
        return Flipped(size, antialias)
    if size is None:
        raise ValueError(f"augmentation {kind!r} must have a size to resize to, got none")
    if kind == "plain":
        return Plain(size)
    if kind not in AUGMENTATIONS:
        raise ValueError(f"augmentation must be one of {', '.join(AUGMENTATIONS)}, got {kind!r}")
    return Authors(size, kind)


def _source(example: Example) -> ImageSource:
    return TensorImage(example.image) if isinstance(example.image, Tensor) else example.image


def _pixels(image: Tensor | ImageSource) -> Tensor:
    if not isinstance(image, Tensor):
        raise ValueError(f"augmentation must be of pixels in memory, got {type(image).__name__}")
    return image
