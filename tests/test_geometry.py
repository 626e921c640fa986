from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.geometry import Axis, Grid, Region, intersect, union_area

# side, cells, fraction -> length, stride, first; measured on the official code.
OFFICIAL = [
    (224, 5, 0.34375, (77, 37, -1)),
    (448, 3, 0.5, (224, 112, 0)),
    (896, 3, 0.5, (448, 224, 0)),
    (448, 5, 0.35, (157, 73, -1)),
]


@pytest.mark.parametrize(("side", "count", "fraction", "expected"), OFFICIAL)
def test_paper_axis_is_the_official_one(side: int, count: int, fraction: float, expected: tuple[int, ...]) -> None:
    axis = Axis.paper(side, count, fraction)
    assert (axis.length, axis.stride, axis.first) == expected


def test_paper_length_rounds_half_to_even() -> None:
    assert Axis.paper(450, 5, 0.35).length == 158  # 157.5
    assert Axis.paper(5, 3, 0.5).length == 2  # 2.5


@given(st.integers(1, 2000), st.integers(1, 12), st.floats(0.01, 1))
def test_paper_axis_follows_its_rule(side: int, count: int, fraction: float) -> None:
    axis = Axis.paper(side, count, fraction)
    end = axis.start(count - 1) + axis.length
    before, after = -axis.first, end - side
    assert all(float(value).is_integer() for value in (axis.length, axis.stride, axis.first))
    if count > 1:
        assert axis.stride == math.ceil((side - axis.length) / (count - 1))
        assert before >= 0
        assert after >= 0
    assert before - after in (0, 1)  # the odd pixel of padding comes first


@given(st.floats(1, 1e6), st.integers(1, 12), st.floats(0.01, 1))
def test_exact_axis_spans_the_side_without_padding(side: float, count: int, fraction: float) -> None:
    axis = Axis.exact(side, count, fraction)
    assert axis.length == pytest.approx(side * fraction)
    assert axis.start(0) + axis.start(count - 1) + axis.length == pytest.approx(side)
    if count > 1:
        assert axis.start(0) == 0


def test_cells_are_counted_row_by_row() -> None:
    grid = Grid(rows=2, columns=3, cell=(0.5, 0.4), convention="exact")
    region = grid.regions(Region(100, 200, 50, 20), [4])[0]  # second row, second column
    assert tuple(region) == pytest.approx((115, 210, 20, 10))


def test_children_in_the_paper_do_not_see_beyond_their_parent() -> None:
    grid = Grid(rows=5, columns=5, cell=(0.35, 0.35))
    parent = grid.regions(Region.whole((448, 448)), [0])[0]
    child = grid.regions(parent, [0])[0]
    assert parent.box == (-1, -1, 156, 156)
    # 157 px: cells of 55 px, 26 px apart, on a canvas of 159 px that begins one pixel before the parent.
    assert tuple(child) == (-2, -2, 55, 55)
    assert child.visible((448, 448)) == (0, 0, 53, 53)
    last = grid.regions(parent, [24])[0]
    assert last.box == (102, 102, 157, 157)
    assert last.visible((448, 448)) == (102, 102, 156, 156)  # the image goes on, but the parent ends


def test_exact_children_may_see_the_whole_image() -> None:
    grid = Grid(rows=2, columns=2, cell=(0.5, 0.5), convention="exact")
    child = grid.regions(Region(10, 10, 40, 40), [3])[0]
    assert child.within is None
    assert tuple(child) == (30, 30, 20, 20)


def test_one_imagenet_location_covers_what_the_paper_says() -> None:
    grid = Grid(rows=5, columns=5, cell=(0.34375, 0.34375))
    cell = grid.regions(Region.whole((224, 224)), [12])[0]
    x, _ = grid.axes(224, 224)
    side = 4 * x.stride + x.length  # of the padded canvas, on which the paper measures
    assert side == 225
    assert cell.width * cell.height / side**2 == pytest.approx(0.1171, abs=5e-5)


@pytest.mark.parametrize(("cells", "share"), [([4], 0.25), ([0, 1], 0.375), ([0, 4], 0.4375), ([0, 8], 0.5)])
def test_fmow_locations_cover_what_geometry_demands(cells: list[int], share: float) -> None:
    grid = Grid(rows=3, columns=3, cell=(0.5, 0.5))
    boxes = [region.box for region in grid.regions(Region.whole((448, 448)), cells)]
    assert union_area(boxes) / 448**2 == share


BOXES = st.tuples(st.integers(0, 29), st.integers(0, 29), st.integers(1, 30), st.integers(1, 30)).map(
    lambda t: (t[0], t[1], min(t[0] + t[2], 30), min(t[1] + t[3], 30))
)


@given(st.lists(BOXES, max_size=8))
def test_union_area_counts_pixels(boxes: list[tuple[int, int, int, int]]) -> None:
    mask = np.zeros((30, 30), bool)
    for left, top, right, bottom in boxes:
        mask[top:bottom, left:right] = True
    assert union_area(boxes) == mask.sum()


@given(BOXES, BOXES)
def test_intersection_counts_pixels(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    masks = np.zeros((2, 30, 30), bool)
    for mask, (left, top, right, bottom) in zip(masks, (a, b), strict=True):
        mask[top:bottom, left:right] = True
    common = intersect(a, b)
    assert (masks[0] & masks[1]).sum() == (union_area([common]) if common else 0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rows": 0}, "at least 1 row"),
        ({"rows": 2.0}, "at least 1 row"),
        ({"cell": (0.5, 1.2)}, "fraction"),
        ({"cell": (0, 0.5)}, "fraction"),
        ({"convention": "other"}, "convention must be one of"),
    ],
)
def test_impossible_grids_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Grid(**{"rows": 3, "columns": 3, "cell": (0.5, 0.5)} | wrong)


def test_a_tiny_image_still_has_cells() -> None:
    grid = Grid(rows=5, columns=5, cell=(0.35, 0.35))
    assert [tuple(region) for region in grid.regions(Region.whole((1, 1)), [0, 24])] == [(0, 0, 1, 1)] * 2


def test_a_single_cell_lies_in_the_middle() -> None:
    for convention in ("paper", "exact"):
        grid = Grid(rows=1, columns=1, cell=(0.5, 0.5), convention=convention)
        assert tuple(grid.regions(Region.whole((100, 60)), [0])[0]) == (25, 15, 50, 30)
