"""Which images are for training, which for validation and which for testing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from foveate.data.examples import SPLITS, Split

# The names that people give to splits, of folders as of rows.
SPLIT_NAMES: dict[str, Split] = {
    "train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """How much of the images is put aside where a data set has no part of its own for validation or testing.

    Where an image falls depends on its own name alone, so that adding or removing images moves no other one. Each
    class gives its share on average, not to the last image.
    """

    validation: float = 0.0
    test: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.validation >= 0 and self.test >= 0 and self.validation + self.test < 1):
            raise ValueError(
                "shares must not be negative and must leave images for training, "
                f"got validation={self.validation}, test={self.test}"
            )

    def split_of(self, name: str) -> Split:
        """The split of the image of this name."""
        digest = hashlib.blake2b(os.fsencode(f"{self.seed}:{name}"), digest_size=8).digest()
        place = int.from_bytes(digest, "big") / 2**64
        if place < self.test:
            return "test"
        return "validation" if place < self.test + self.validation else "train"


def check_split(split: Split) -> None:
    """Refuses what is no split."""
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")


def check_has_split(where: Path, split: Split, own: Iterable[Split], shares: Shares) -> None:
    """Refuses a split that is neither a part of the data set nor drawn from its training images."""
    own = set(own)
    drawn = {"validation": shares.validation, "test": shares.test}.get(split, 0) if "train" in own else 0
    if split not in own and not drawn:
        there = ", ".join(name for name in SPLITS if name in own) or "no split at all"
        can_be_drawn = split == "validation" and "train" in own
        hint = "; pass validation=0.1 to take a tenth of the training images" if can_be_drawn else ""
        raise ValueError(f"{where} must have the split {split!r}, got {there}{hint}")


def check_not_empty(where: Path, split: Split, chosen: int, of: int) -> None:
    """Refuses a split into which no image fell."""
    if not chosen:
        hint = f" of {of}; another share or seed may give some" if of else ""
        raise ValueError(f"{where} must have images in the split {split!r}, got none{hint}")
