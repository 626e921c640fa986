from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.data.examples import SPLITS
from foveate.data.splits import Shares, check_has_split, check_not_empty, check_split

NAMES = [f"class/{number}.jpg" for number in range(10_000)]


def of_split(shares: Shares, split: str, names: list[str]) -> set[str]:
    return {name for name in names if shares.split_of(name) == split}


def test_where_an_image_falls_never_changes() -> None:
    """Frozen: a run that goes on under a later version must not have trained on its validation images."""
    shares = Shares(validation=0.2, test=0.3, seed=0)
    initials = "".join(shares.split_of(f"a/{number}.jpg")[:2] for number in range(12))
    assert initials == "tetetrtetrtrvatrtetrtrtr"


@given(
    names=st.lists(st.text(min_size=1), unique=True, max_size=50),
    more=st.lists(st.text(min_size=1), unique=True, max_size=50),
    validation=st.floats(0, 0.5),
    test=st.floats(0, 0.49),
    seed=st.integers(0, 9),
)
def test_splits_cover_all_and_new_images_move_no_other(
    names: list[str], more: list[str], validation: float, test: float, seed: int
) -> None:
    shares = Shares(validation=validation, test=test, seed=seed)
    before, after = ({split: of_split(shares, split, each) for split in SPLITS} for each in (names, names + more))
    assert sum(map(len, before.values())) == len(set.union(*before.values())) == len(names)
    assert all(before[split] == after[split] & set(names) for split in SPLITS)


def test_shares_are_as_asked_for() -> None:
    shares = Shares(validation=0.1, test=0.25)
    for split, share in (("validation", 0.1), ("test", 0.25), ("train", 0.65)):
        spread = math.sqrt(len(NAMES) * share * (1 - share))
        assert abs(len(of_split(shares, split, NAMES)) - share * len(NAMES)) < 4 * spread


def test_nothing_is_put_aside_unless_asked_for() -> None:
    assert of_split(Shares(), "train", NAMES) == set(NAMES)


def test_another_seed_draws_others_and_a_larger_share_keeps_what_it_had() -> None:
    small, large = (of_split(Shares(validation=share, test=0.1), "validation", NAMES) for share in (0.1, 0.2))
    other = of_split(Shares(validation=0.1, test=0.1, seed=1), "validation", NAMES)
    assert small < large
    assert len(small & other) < len(small) / 4


@pytest.mark.parametrize(
    ("validation", "test"), [(-0.1, 0), (0, -0.1), (0.5, 0.5), (1, 0), (math.nan, 0), (0, math.nan)]
)
def test_shares_must_leave_images_for_training(validation: float, test: float) -> None:
    with pytest.raises(ValueError, match="shares must not be negative and must leave images for training, got"):
        Shares(validation=validation, test=test)


def test_names_of_splits_are_checked() -> None:
    for split in SPLITS:
        check_split(split)
    with pytest.raises(ValueError, match="split must be one of train, validation, test, got 'val'"):
        check_split("val")  # type: ignore[arg-type]


def test_a_split_must_be_there_or_drawn() -> None:
    here = Path("set")
    check_has_split(here, "test", ["test"], Shares())
    check_has_split(here, "validation", ["train"], Shares(validation=0.1))
    check_has_split(here, "test", ["train"], Shares(test=0.1))
    hint = "; pass validation=0.1 to take a tenth of the training images"
    with pytest.raises(ValueError, match=rf"^set must have the split 'validation', got train, test{hint}$"):
        check_has_split(here, "validation", ["test", "train"], Shares(test=0.1))
    with pytest.raises(ValueError, match=r"must have the split 'validation', got test$"):
        check_has_split(here, "validation", ["test"], Shares(validation=0.1))
    with pytest.raises(ValueError, match=r"must have the split 'train', got no split at all$"):
        check_has_split(here, "train", [], Shares(validation=0.1))


def test_a_split_must_have_images() -> None:
    check_not_empty(Path("set"), "train", 1, 1)
    with pytest.raises(ValueError, match="got none of 7; another share or seed may give some"):
        check_not_empty(Path("set"), "validation", 0, 7)
    with pytest.raises(ValueError, match=r"set must have images in the split 'test', got none$"):
        check_not_empty(Path("set"), "test", 0, 0)
