"""What a labelled data set is: images with a class, told apart by split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from foveate.sources import ImageSource

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclass(frozen=True, slots=True)
class Example:
    """An image, its class, and the objects in it: boxes (objects, 4) as left, top, width, height in its pixels.

    Pixels are (channels, height, width) uint8, or whatever else a source gives; boxes may be none at all, (0, 4).
    """

    image: Tensor | ImageSource
    label: int
    boxes: Tensor
    name: str = ""


class LabelledData(Protocol):
    """A split of a data set. Example i is the same whenever it is asked for; reading it may raise ``ValueError``."""

    @property
    def classes(self) -> Sequence[str]:
        """The classes' names, by label."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example: ...
