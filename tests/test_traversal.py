from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from foveate.geometry import Grid, Region
from foveate.glimpses import GlimpseReader
from foveate.selection import top_k
from foveate.sources import TensorImage
from foveate.traversal import Level, Look, check_locations, glimpses_per_level, traverse


class RecordingImage(TensorImage):
    """Remembers what was read of it."""

    def __init__(self, pixels: Tensor) -> None:
        super().__init__(pixels)
        self.reads: list[tuple[float, ...]] = []

    def read(self, region: Region, size: tuple[int, int], *, antialias: bool = False) -> Tensor:
        self.reads.append(tuple(region))
        return super().read(region, size, antialias=antialias)


class Eye:
    """Stands in for a network: its feature is the glimpse's mean, its policy is random but repeatable."""

    def __init__(self, cells: int) -> None:
        self.cells = cells
        self.glimpses: list[Tensor] = []
        self.positions: list[Tensor] = []

    def __call__(self, glimpses: Tensor, positions: Tensor, decide: bool) -> Look:
        self.glimpses.append(glimpses)
        self.positions.append(positions)
        features = glimpses.mean((2, 3))
        logits = torch.sin(features.sum(1, keepdim=True) * 1e4 + torch.arange(self.cells) ** 2)
        return Look(
            features=features, encoded=features + 1, probabilities=torch.softmax(logits, 1) if decide else None
        )


def official_walk(images: Tensor, n: int, fraction: float, levels: Sequence[Level], base: int) -> list[Tensor]:
    """The official procedure: pad each attended crop, cut ALL n x n patches of it, gather, resize, go on."""
    crops, glimpses = images, [F.interpolate(images, (base, base), mode="bilinear", align_corners=False)]
    for level in levels[1:]:
        side = crops.shape[-1]
        patch = round(side * fraction)
        stride = -(-(side - patch) // (n - 1))
        pad = (n - 1) * stride + patch - side
        before, after = -(-pad // 2), pad // 2
        padded = F.pad(crops, (before, after, before, after))
        patches = padded.unfold(2, patch, stride).unfold(3, patch, stride)  # (N, C, n, n, patch, patch)
        assert patches.shape[2:4] == (n, n)
        patches = patches.flatten(2, 3).transpose(1, 2)  # (N, n * n, C, patch, patch)
        cells = level.cells.reshape(len(crops), -1)
        crops = torch.stack([p[c] for p, c in zip(patches, cells, strict=True)]).flatten(0, 1)
        glimpses.append(F.interpolate(crops, (base, base), mode="bilinear", align_corners=False))
    return glimpses


@pytest.mark.parametrize(
    ("side", "n", "fraction", "locations", "base"),
    [
        (224, 5, 0.34375, (3,), 77),
        (448, 5, 0.35, (5,), 64),
        (448, 5, 0.35, (3, 2), 64),
        (224, 3, 0.5, (2, 1), 56),
        (224, 3, 0.5, (3, 2, 2), 56),
        (101, 4, 0.3, (4, 3, 2), 30),
    ],
)
def test_the_walk_reads_what_the_official_code_cuts_out(
    side: int, n: int, fraction: float, locations: tuple[int, ...], base: int
) -> None:
    images = torch.randn(2, 3, side, side)
    eye = Eye(n * n)
    levels, cost = traverse(
        [TensorImage(image) for image in images],
        eye,
        grid=Grid(rows=n, columns=n, cell=(fraction, fraction)),
        locations=locations,
        readers=[GlimpseReader(size=(base, base))],
        select=top_k,
    )
    wanted = official_walk(images, n, fraction, levels, base)
    assert len(eye.glimpses) == len(wanted) == len(locations) + 1
    for got, crop in zip(eye.glimpses, wanted, strict=True):
        torch.testing.assert_close(got, crop)
    assert cost.glimpses == 2 * sum(glimpses_per_level(locations))


def walk(
    locations: tuple[int, ...], sizes: Sequence[tuple[int, int]], grid: Grid
) -> tuple[list[RecordingImage], tuple[Level, ...], Eye]:
    images = [RecordingImage(torch.randn(2, height, width)) for width, height in sizes]
    eye = Eye(grid.cells)
    levels, _ = traverse(
        images, eye, grid=grid, locations=locations, readers=[GlimpseReader(size=(16, 16))], select=top_k
    )
    return images, levels, eye


GRID = Grid(rows=3, columns=4, cell=(0.4, 0.3))


def test_only_opened_cells_are_read() -> None:
    images, levels, _ = walk((2, 3), [(90, 60), (50, 120)], GRID)
    for index, image in enumerate(images):
        opened = [tuple(box) for level in levels for box in level.boxes[index].tolist()]
        assert image.reads == opened
        assert len(opened) == 1 + 2 + 6


def test_records_fit_together() -> None:
    images, levels, eye = walk((2, 3), [(90, 60), (50, 120)], GRID)
    assert levels[0].probabilities is None
    assert levels[0].boxes[:, 0].tolist() == [[0, 0, 90, 60], [0, 0, 50, 120]]
    for depth, parents in ((1, 1), (2, 2)):
        level = levels[depth]
        fanout = (2, 3)[depth - 1]
        assert level.probabilities is not None
        assert level.probabilities.shape == (2, parents, 12)
        cells = level.cells.view(2, parents, fanout)
        best = level.probabilities.topk(fanout).indices.sort(-1).values
        assert torch.equal(cells, best)
        for index in range(2):
            for parent in range(parents):
                outer = Region(*levels[depth - 1].boxes[index, parent].tolist())
                for number, cell in enumerate(cells[index, parent].tolist()):
                    box = level.boxes[index, parent * fanout + number].tolist()
                    assert tuple(box) == tuple(GRID.regions(outer, [cell])[0])
    for depth, positions in enumerate(eye.positions):
        assert torch.equal(positions, levels[depth].positions.flatten(0, 1))
    first, second = levels[1].positions, levels[2].positions
    assert torch.equal(first[..., 0] * 4 + first[..., 1], levels[1].cells)
    parents_row, parents_column = first[..., 0].repeat_interleave(3, 1), first[..., 1].repeat_interleave(3, 1)
    assert torch.equal(second[..., 0], parents_row * 3 + levels[2].cells // 4)
    assert torch.equal(second[..., 1], parents_column * 4 + levels[2].cells % 4)
    assert second[..., 2].unique().tolist() == [2]
    assert torch.equal(levels[2].encoded, levels[2].features + 1)
    assert images[0].size == (90, 60)


def test_no_locations_look_once() -> None:
    images, levels, eye = walk((), [(30, 20)], GRID)
    assert len(levels) == len(eye.glimpses) == len(images[0].reads) == 1


def test_exact_cells_are_read_between_pixels() -> None:
    grid = Grid(rows=2, columns=2, cell=(0.35, 0.35), convention="exact")
    image = RecordingImage(torch.randn(1, 101, 101))
    traverse([image], Eye(4), grid=grid, locations=(4,), readers=[GlimpseReader(size=(16, 16))], select=top_k)
    assert image.reads[4] == pytest.approx((65.65, 65.65, 35.35, 35.35))


@pytest.mark.parametrize(
    ("given", "checked"),
    [
        ((), ()),
        (3, (3,)),
        (np.int64(2), (2,)),
        ((np.int64(2),), (2,)),
        (0, ()),
        ((0,), ()),
        ((2, 1), (2, 1)),
        ([2, 0], (2,)),
        ((25,), (25,)),
    ],
)
def test_locations_are_settled(given: object, checked: tuple[int, ...]) -> None:
    assert check_locations(given, 25) == checked


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ((26,), r"from 0 to the grid's 25 cells, got \(26,\)"),
        ((-1,), "from 0 to the grid's 25"),
        ((1.5,), "whole numbers"),
        (True, "whole numbers"),
        ((None,), "whole numbers"),
        ((0, 2), "must not continue after a level that opens 0 cells"),
        ("2", "whole numbers"),
    ],
)
def test_impossible_locations_are_refused(wrong: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_locations(wrong, 25)
