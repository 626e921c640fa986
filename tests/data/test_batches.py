"""What each step sees follows from the seed and the step alone, whoever reads it."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foveate.data.batches import (
    Batch,
    Loader,
    Share,
    Ticket,
    evaluation_tickets,
    seed_of,
    steps_per_epoch,
    training_tickets,
)
from foveate.data.examples import Example
from foveate.data.transforms import Flipped, Plain, Resized
from foveate.sources import TensorImage
from tests.tiny import Corners

ALONE = Share()


def indices(tickets: list[list[Ticket]]) -> list[list[int]]:
    return [[ticket.index for ticket in batch] for batch in tickets]


def test_seeds_depend_on_every_part() -> None:
    seeds = [seed_of(0, "image", 1, 2), seed_of(0, "image", 1, 3), seed_of(0, "image", 12), seed_of(1, "image", 1, 2)]
    assert len(set(seeds)) == 4
    assert seed_of(0, "image", 1, 2) == seeds[0]
    assert seed_of("a") == 38582675093786123  # the same on every machine
    assert all(0 <= seed < 2**63 for seed in seeds)


@given(count=st.integers(1, 50), batch=st.integers(1, 20), cut=st.integers(0, 12))
def test_a_run_that_begins_in_the_middle_sees_the_same(count: int, batch: int, cut: int) -> None:
    whole = training_tickets(count, batch, range(12), seed=3, share=ALONE)
    assert training_tickets(count, batch, range(cut, 12), seed=3, share=ALONE) == whole[cut:]


@given(world=st.integers(1, 4), each=st.integers(1, 5))
def test_all_processes_together_see_what_one_would(world: int, each: int) -> None:
    batch = world * each
    alone = training_tickets(41, batch, range(9), seed=3, share=ALONE)
    shares = [training_tickets(41, batch, range(9), seed=3, share=Share(rank=r, world=world)) for r in range(world)]
    for step, tickets in enumerate(alone):
        parts = [share[step] for share in shares]
        assert {len(part) for part in parts} == {each}
        assert Counter(t for part in parts for t in part) == Counter(tickets)


def test_an_epoch_sees_each_image_at_most_once_and_in_an_order_of_its_own() -> None:
    epochs = [indices(training_tickets(10, 3, range(3 * e, 3 * e + 3), seed=0, share=ALONE)) for e in range(60)]
    for epoch in epochs:
        assert [len(batch) for batch in epoch] == [3, 3, 3]
        assert len({i for batch in epoch for i in batch}) == 9
    assert len({str(epoch) for epoch in epochs}) == 60
    left_over = Counter(45 - sum(i for batch in epoch for i in batch) for epoch in epochs)
    assert set(left_over) == set(range(10))  # whom there is no room for changes


def test_an_image_is_changed_differently_in_each_epoch_and_each_run() -> None:
    def seeds(seed: int, steps: range) -> set[int]:
        return {t.seed for batch in training_tickets(8, 4, steps, seed=seed, share=ALONE) for t in batch}

    assert len(seeds(0, range(6)) | seeds(1, range(6))) == 2 * 3 * 8


@pytest.mark.parametrize(("count", "batch", "steps"), [(10, 3, 3), (9, 3, 3), (3, 3, 1), (2, 3, 1)])
def test_steps_of_an_epoch(count: int, batch: int, steps: int) -> None:
    assert steps_per_epoch(count, batch) == steps


@given(count=st.integers(0, 30), batch=st.integers(1, 7), world=st.integers(1, 4))
def test_evaluation_sees_everything_once(count: int, batch: int, world: int) -> None:
    shares = [evaluation_tickets(count, batch, share=Share(rank=r, world=world)) for r in range(world)]
    assert sorted(i for share in shares for part in indices(share) for i in part) == list(range(count))
    assert all(len(part) == batch for share in shares for part in share[:-1])
    assert all(share[-1] for share in shares if share)


# --- loaders ---------------------------------------------------------------------------------------------


def test_workers_change_nothing() -> None:
    tickets = training_tickets(12, 4, range(7), seed=0, share=ALONE)
    batches = [list(Loader(Corners(12), tickets, Plain((24, 24)), workers=workers)) for workers in (0, 2)]
    assert len(batches[0]) == 7
    for one, other in zip(*batches, strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)


def test_a_batch_is_its_tickets_examples() -> None:
    data, tickets = Corners(12), [[Ticket(3, 7), Ticket(5, 8)], [Ticket(3, 9)]]
    first, second = Loader(data, tickets, Flipped((48, 48)))
    for image, ticket in zip([*first.images, *second.images], [*tickets[0], *tickets[1]], strict=True):
        expected = Flipped((48, 48))(data[ticket.index], torch.Generator().manual_seed(ticket.seed))
        assert torch.equal(image, expected)
    assert first.labels.tolist() == [data[3].label, data[5].label]
    assert torch.equal(first.boxes[1], data[5].boxes)
    assert first.unread == []


class Sizes(Corners):
    """Images of two sizes."""

    def __getitem__(self, index: int) -> Example:
        example = super().__getitem__(index)
        return Example(example.image[:, : 48 - index % 2], example.label, example.boxes)


@pytest.mark.parametrize(("order", "together"), [((0, 2), True), ((0, 1), False)])
def test_images_of_different_sizes_are_sources(order: tuple[int, int], together: bool) -> None:
    (batch,) = Loader(Sizes(4), [[Ticket(i, 0) for i in order]], Resized(None))
    if together:
        assert isinstance(batch.images, torch.Tensor)
    else:
        assert [type(image) for image in batch.images] == [TensorImage, TensorImage]
        assert [image.size for image in batch.images] == [(48, 48), (48, 47)]


def names(batch: Batch) -> list[tuple[int, str]]:
    return [(unread.index, unread.reason.split()[0]) for unread in batch.unread]


def test_what_cannot_be_read_is_left_out_and_named() -> None:
    data = Corners(6, broken={1, 2})
    first, second = Loader(data, [[Ticket(0, 0), Ticket(1, 0)], [Ticket(2, 0)]], Resized((48, 48)))
    assert first.labels.tolist() == [data[0].label]
    assert names(first) == [(1, "image-1.png")]
    assert len(second.images) == len(second.labels) == 0
    assert second.labels.dtype == torch.long
    assert names(second) == [(2, "image-2.png")]


def test_what_cannot_be_read_is_replaced_by_what_follows() -> None:
    data = Corners(6, broken={0, 4, 5})
    (batch,) = Loader(data, [[Ticket(4, 7), Ticket(2, 8)]], Flipped((48, 48)), spare=3)
    assert names(batch) == [(4, "image-4.png"), (5, "image-5.png"), (0, "image-0.png")]
    assert batch.labels.tolist() == [data[1].label, data[2].label]
    assert torch.equal(batch.images[0], Flipped((48, 48))(data[1], torch.Generator().manual_seed(7)))
    (too_few,) = Loader(data, [[Ticket(4, 7)]], Flipped((48, 48)), spare=2)
    assert (len(too_few.labels), len(too_few.unread)) == (0, 3)
    (none,) = Loader(Corners(2, broken={0, 1}), [[Ticket(0, 0)]], Resized(None), spare=9)
    assert names(none) == [(0, "image-0.png"), (1, "image-1.png")]


def test_reasons_are_one_line() -> None:
    class Broken(Corners):
        def __getitem__(self, index: int) -> Example:
            raise OSError("two\n  lines")

    (batch,) = Loader(Broken(1), [[Ticket(0, 0)]], Resized(None))
    assert [unread.reason for unread in batch.unread] == ["two lines"]


def test_mistakes_of_a_program_are_not_images_that_cannot_be_read() -> None:
    class Wrong(Corners):
        def __getitem__(self, index: int) -> Example:
            raise KeyError(index)

    with pytest.raises(KeyError):
        list(Loader(Wrong(1), [[Ticket(0, 0)]], Resized(None), spare=5))


class Telling(Corners):
    """Writes down which process reads."""

    folder = Path()

    def __getitem__(self, index: int) -> Example:
        (self.folder / str(os.getpid())).touch()
        return super().__getitem__(index)


def test_workers_start_with_the_first_batch_and_end_with_the_last(tmp_path: Path) -> None:
    data = Telling(8)
    data.folder = tmp_path
    loader = Loader(data, [[Ticket(i, 0)] for i in range(8)], Resized(None), workers=2)
    assert len(loader) == 8
    iterator = iter(loader)
    time.sleep(0.2)
    assert list(tmp_path.iterdir()) == []
    assert len(list(iterator)) == 8
    readers = [int(path.name) for path in tmp_path.iterdir()]
    assert len(readers) == 2
    assert os.getpid() not in readers
    assert not any(Path(f"/proc/{pid}").exists() for pid in readers)
