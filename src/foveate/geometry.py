"""Regions of an image and the grids of candidate cells laid over them: arithmetic only, no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Convention = Literal["paper", "exact"]
CONVENTIONS: tuple[Convention, ...] = ("paper", "exact")

Box = tuple[float, float, float, float]
"""left, top, right, bottom"""


@dataclass(frozen=True, slots=True)
class Region:
    """A rectangle of the image, in full-resolution pixels.

    ``within`` is the box beyond which nothing is seen: a reader blanks what lies outside of it, as it
    blanks what lies outside of the image. ``None`` means that the image's own border is the only limit.
    """

    left: float
    top: float
    width: float
    height: float
    within: Box | None = None

    def __iter__(self) -> Iterator[float]:
        """Left, top, width, height: so that a region unpacks like the row of a ``boxes`` tensor."""
        return iter((self.left, self.top, self.width, self.height))

    @classmethod
    def whole(cls, size: tuple[int, int]) -> Region:
        """The region that covers an image of ``size`` (width, height)."""
        return cls(0, 0, *size)

    @classmethod
    def of(cls, value: Region | Iterable[float]) -> Region:
        """A region from itself or from (left, top, width, height)."""
        if isinstance(value, Region):
            return value
        left, top, width, height = value
        return cls(left, top, width, height)

    @property
    def box(self) -> Box:
        """Left, top, right, bottom."""
        return (self.left, self.top, self.left + self.width, self.top + self.height)

    def visible(self, size: tuple[int, int]) -> Box | None:
        """The part that can be seen in an image of ``size`` (width, height); None when there is none."""
        seen = intersect(self.box, (0, 0, *size))
        return intersect(seen, self.within) if seen and self.within else seen


def intersect(a: Box, b: Box) -> Box | None:
    """The common part of two boxes, or None when they do not overlap."""
    left, top = max(a[0], b[0]), max(a[1], b[1])
    right, bottom = min(a[2], b[2]), min(a[3], b[3])
    return (left, top, right, bottom) if left < right and top < bottom else None


def union_area(boxes: Iterable[Box]) -> float:
    """The area that boxes cover together: overlaps count once."""
    boxes = list(boxes)
    edges = sorted({x for box in boxes for x in (box[0], box[2])})
    area = 0.0
    for left, right in pairwise(edges):
        reached = -math.inf
        for top, bottom in sorted((b[1], b[3]) for b in boxes if b[0] <= left and b[2] >= right):
            area += (right - left) * max(0.0, bottom - max(top, reached))
            reached = max(reached, bottom)
    return area


@dataclass(frozen=True, slots=True)
class Axis:
    """How a grid's cells lie along one axis: the cell's length, their distance, and where the first begins."""

    length: float
    stride: float
    first: float

    @classmethod
    def paper(cls, side: float, count: int, fraction: float) -> Axis:
        """Whole pixels as in the official code: half-to-even length, rounded-up stride, padding before first."""
        length = max(1, round(side * fraction))
        stride = math.ceil((side - length) / (count - 1)) if count > 1 else 0
        padding = (count - 1) * stride + length - side
        return cls(length, stride, -math.ceil(padding / 2))

    @classmethod
    def exact(cls, side: float, count: int, fraction: float) -> Axis:
        """Cells of exactly ``fraction * side``, evenly spread from border to border, in fractions of pixels."""
        length = side * fraction
        if count == 1:
            return cls(length, 0.0, (side - length) / 2)
        return cls(length, (side - length) / (count - 1), 0.0)

    def start(self, index: int) -> float:
        """Where cell ``index`` begins."""
        return self.first + index * self.stride


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """``rows`` x ``columns`` candidate cells inside a region; each spans the fractions ``cell`` (height, width).

    ``paper`` is the official code's geometry: whole pixels, a border of blank padding where the rounded-up
    stride needs it, and children that never see beyond their parent. ``exact`` needs no padding.
    """

    rows: int
    columns: int
    cell: tuple[float, float]
    convention: Convention = "paper"

    def __post_init__(self) -> None:
        if not all(isinstance(count, int) and count >= 1 for count in (self.rows, self.columns)):
            raise ValueError(f"grid must have at least 1 row and 1 column, got {self.rows} x {self.columns}")
        if not all(0 < fraction <= 1 for fraction in self.cell):
            raise ValueError(f"cell must be a fraction of the region in (0, 1], got {self.cell}")
        if self.convention not in CONVENTIONS:
            raise ValueError(f"convention must be one of {CONVENTIONS}, got {self.convention!r}")

    @property
    def cells(self) -> int:
        """How many candidate cells there are."""
        return self.rows * self.columns

    def axes(self, width: float, height: float) -> tuple[Axis, Axis]:
        """The horizontal and the vertical layout of the cells in a region of this size."""
        lay = Axis.paper if self.convention == "paper" else Axis.exact
        return lay(width, self.columns, self.cell[1]), lay(height, self.rows, self.cell[0])

    def regions(self, parent: Region, cells: Iterable[int]) -> list[Region]:
        """The chosen cells of ``parent``, which are counted row by row."""
        x, y = self.axes(parent.width, parent.height)
        within = self._sight(parent)
        found = []
        for cell in cells:
            row, column = divmod(cell, self.columns)
            left, top = parent.left + x.start(column), parent.top + y.start(row)
            found.append(Region(left, top, x.length, y.length, within))
        return found

    def centres(self, width: float, height: float) -> tuple[list[float], list[float]]:
        """The cells' centres along x and along y, in a region of this size."""
        x, y = self.axes(width, height)
        return (
            [x.start(column) + x.length / 2 for column in range(self.columns)],
            [y.start(row) + y.length / 2 for row in range(self.rows)],
        )

    def _sight(self, parent: Region) -> Box | None:
        """What children may see: the official code crops them from the parent's crop, not from the image."""
        if self.convention == "exact":
            return None
        if parent.within is None:
            return parent.box
        return intersect(parent.box, parent.within) or (*parent.box[:2], *parent.box[:2])
