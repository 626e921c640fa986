"""The coarse-to-fine walk over an image, and the records of it: Level, Walk, Prediction."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import SupportsIndex

import torch
from torch import Tensor

from foveate.geometry import Grid, Region
from foveate.glimpses import GlimpseReader, ReadingCost
from foveate.selection import Select
from foveate.sources import ImageSource


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What a network makes of N glimpses: features (N, D), the same with their position worked in (N, D),
    and, if it was asked where to look next, probabilities (N, cells).
    """

    features: Tensor
    encoded: Tensor
    probabilities: Tensor | None = None


LookAt = Callable[[Tensor, Tensor, bool], Look]
"""(glimpses (N, C, h, w), positions (N, 3), decide where to look next?) -> Look"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """What was looked at in one step of the walk; K regions of each of B images, in row-major order.

    ``probabilities`` (B, K of the level above, cells) and ``log_probability`` (B, K of the level above) tell
    how the regions were chosen; the first level, the whole image, was not chosen and has neither.
    """

    boxes: Tensor  # (B, K, 4) float64, on the CPU: left, top, width, height in full-resolution pixels
    cells: Tensor  # (B, K) each region's cell in its parent's grid, counted row by row
    positions: Tensor  # (B, K, 3) row and column among all cells of the level, and the level's index
    features: Tensor  # (B, K, D) what the backbone saw
    encoded: Tensor  # (B, K, D) the same with the position worked in: what is combined and classified
    probabilities: Tensor | None = None
    log_probability: Tensor | None = None
    logits: Tensor | None = None  # (B, K, classes) what each region alone would be taken for; in training only


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk:
    """Everything that was looked at, level by level, how much each glimpse counted, and what reading cost."""

    levels: tuple[Level, ...]
    weights: Tensor  # (B, 1 + attended), sums to 1
    cost: ReadingCost


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """Logits (B, classes), the walk that they come from, and the one feature (B, D) that was classified."""

    logits: Tensor
    walk: Walk
    combined: Tensor


def check_locations(locations: SupportsIndex | Sequence[SupportsIndex], cells: int) -> tuple[int, ...]:
    """How many cells to open in each region of each level, without trailing zeros; checked against the grid."""
    refusal = f"locations must be whole numbers from 0 to the grid's {cells} cells, got {locations}"
    try:
        given = (locations,) if isinstance(locations, SupportsIndex) else tuple(locations)
        counts = tuple(operator.index(count) for count in given)
    except TypeError:
        raise ValueError(refusal) from None
    if any(isinstance(count, bool) for count in given) or not all(0 <= count <= cells for count in counts):
        raise ValueError(refusal)
    while counts and counts[-1] == 0:
        counts = counts[:-1]
    if 0 in counts:
        raise ValueError(f"locations must not continue after a level that opens 0 cells, got {locations}")
    return counts


def glimpses_per_level(locations: Sequence[int]) -> list[int]:
    """How many regions of one image each level reads: 1, k1, k1 * k2, ..."""
    counts = [1]
    for fanout in locations:
        counts.append(counts[-1] * fanout)
    return counts


def traverse(
    sources: Sequence[ImageSource],
    look: LookAt,
    *,
    grid: Grid,
    locations: Sequence[int],
    readers: Sequence[GlimpseReader],
    select: Select,
) -> tuple[tuple[Level, ...], ReadingCost]:
    """Looks at the whole images, then level by level at the cells that ``select`` opens; reads nothing else.

    Each level has a reader; the last one is for all that follow.
    """
    regions = [[Region.whole(source.size)] for source in sources]
    cells = torch.zeros(len(sources), 1, dtype=torch.long)
    positions = torch.zeros(len(sources), 1, 3, dtype=torch.long)
    policy = log_probability = None
    levels: list[Level] = []
    cost = ReadingCost()
    for depth, fanout in enumerate((*locations, 0)):
        glimpses, price = readers[min(depth, len(readers) - 1)](sources, regions)
        seen = look(glimpses, positions.flatten(0, 1), fanout > 0)
        cost += price
        cells, positions = cells.to(seen.features.device), positions.to(seen.features.device)
        levels.append(
            Level(
                boxes=_boxes(regions),
                cells=cells,
                positions=positions,
                features=seen.features.unflatten(0, cells.shape),
                encoded=seen.encoded.unflatten(0, cells.shape),
                probabilities=policy,
                log_probability=log_probability,
            )
        )
        if fanout and seen.probabilities is not None:
            policy = seen.probabilities.unflatten(0, cells.shape)  # (B, K, cells)
            choice = select(policy, fanout)
            log_probability = choice.log_probability  # (B, K)
            regions = _descend(grid, regions, choice.cells)
            positions = _child_positions(grid, positions, choice.cells)
            cells = choice.cells.flatten(1)  # (B, K * fanout)
    return tuple(levels), cost


def _descend(grid: Grid, regions: list[list[Region]], cells: Tensor) -> list[list[Region]]:
    return [
        [child for parent, chosen in zip(*pair, strict=True) for child in grid.regions(parent, chosen)]
        for pair in zip(regions, cells.tolist(), strict=True)
    ]


def _child_positions(grid: Grid, parents: Tensor, cells: Tensor) -> Tensor:
    """Cells (B, K, fanout) of parents (B, K, 3) -> rows and columns in the grid of all cells of their level."""
    y, x, depth = parents.unsqueeze(2).expand(-1, -1, cells.shape[2], -1).unbind(-1)
    rows, columns = cells // grid.columns, cells % grid.columns
    return torch.stack((y * grid.rows + rows, x * grid.columns + columns, depth + 1), -1).flatten(1, 2)


def _boxes(regions: list[list[Region]]) -> Tensor:
    return torch.tensor([[tuple(region) for region in row] for row in regions], dtype=torch.float64)
