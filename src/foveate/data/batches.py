"""Which examples each step of training sees, and how: a function of the seed and the step alone.

Nothing here remembers anything. So a run that was killed goes on exactly where it was, and two processes with half
the batch each see what one process would.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from foveate.data.examples import Example, LabelledData
from foveate.sources import ImageSource, TensorImage

Prepare = Callable[[Example, torch.Generator], Tensor | ImageSource]
"""(example, generator) -> what the model is given"""


@dataclass(frozen=True, slots=True)
class Ticket:
    """An example to read, and the seed of everything that is random in preparing it."""

    index: int
    seed: int


@dataclass(frozen=True, slots=True)
class Unread:
    """An example that could not be read, and why."""

    index: int
    reason: str


class Batch(NamedTuple):
    """Images of one size as a tensor (B, C, H, W), others as sources; and what could not be read."""

    images: Tensor | list[ImageSource]
    labels: Tensor
    boxes: list[Tensor]
    unread: list[Unread]


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """This process is number ``rank`` of ``world``."""

    rank: int = 0
    world: int = 1


def seed_of(*parts: object) -> int:
    """A seed that depends on all parts, and on nothing else."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


def steps_per_epoch(count: int, batch: int) -> int:
    """Batches that an epoch has room for; what is left over waits for another epoch's order."""
    return max(1, count // batch)


def training_tickets(count: int, batch: int, steps: range, *, seed: int, share: Share) -> list[list[Ticket]]:
    """The batches of these steps, counted from the beginning of training; each epoch has an order of its own.

    A process gets every ``world``-th image of each batch.
    """
    each = steps_per_epoch(count, batch)
    orders: dict[int, Tensor] = {}
    tickets = []
    for step in steps:
        epoch, position = divmod(step, each)
        if epoch not in orders:
            generator = torch.Generator().manual_seed(seed_of(seed, "order", epoch))
            orders[epoch] = torch.randperm(count, generator=generator)
        chosen = orders[epoch][position * batch : (position + 1) * batch].tolist()
        tickets.append([Ticket(i, seed_of(seed, "image", epoch, i)) for i in chosen[share.rank :: share.world]])
    return tickets


def evaluation_tickets(count: int, batch: int, *, share: Share) -> list[list[Ticket]]:
    """Every example once, in order; a process gets every ``world``-th of them."""
    mine = [Ticket(i, 0) for i in range(share.rank, count, share.world)]
    return [mine[start : start + batch] for start in range(0, len(mine), batch)]


class Loader:
    """Batches for these tickets, in their order, read by ``workers`` processes; 0 reads in this one.

    In place of an example that cannot be read, the next one that can be is, if it is among the ``spare`` ones that
    follow it.
    """

    def __init__(
        self,
        data: LabelledData,
        tickets: Sequence[Sequence[Ticket]],
        prepare: Prepare,
        *,
        workers: int = 0,
        spare: int = 0,
    ) -> None:
        self.tickets = [list(batch) for batch in tickets]
        self.loader: DataLoader[Any] = DataLoader(
            _Prepared(data, prepare, spare),
            batch_sampler=self.tickets,
            collate_fn=_collate,
            num_workers=min(workers, len(self.tickets)),
        )

    def __len__(self) -> int:
        return len(self.tickets)

    def __iter__(self) -> Iterator[Batch]:
        # Lightning asks twice for an iterator and uses one; workers start with the first batch that is asked for.
        yield from self.loader


class _Read(NamedTuple):
    image: Tensor | ImageSource | None
    label: int
    boxes: Tensor
    unread: list[Unread]


class _Prepared(Dataset[_Read]):
    def __init__(self, data: LabelledData, prepare: Prepare, spare: int) -> None:
        self.data, self.prepare, self.spare = data, prepare, spare

    def __getitem__(self, ticket: Ticket) -> _Read:
        unread = []
        for offset in range(min(1 + self.spare, len(self.data))):
            index = (ticket.index + offset) % len(self.data)
            try:
                example = self.data[index]
                image = self.prepare(example, torch.Generator().manual_seed(ticket.seed))
            except (ValueError, OSError) as error:
                unread.append(Unread(index, " ".join(str(error).split())))
            else:
                return _Read(image, example.label, example.boxes, unread)
        return _Read(None, -1, torch.zeros(0, 4), unread)


def _collate(items: Sequence[_Read]) -> Batch:
    read = [(item.image, item.label, item.boxes) for item in items if item.image is not None]
    return Batch(
        images=_stack([image for image, _, _ in read]),
        labels=torch.tensor([label for _, label, _ in read], dtype=torch.long),
        boxes=[boxes for _, _, boxes in read],
        unread=[unread for item in items for unread in item.unread],
    )


def _stack(images: Sequence[Tensor | ImageSource]) -> Tensor | list[ImageSource]:
    pixels = [image for image in images if isinstance(image, Tensor)]
    if images and len(pixels) == len(images) and len({image.shape for image in pixels}) == 1:
        return torch.stack(pixels)
    return [TensorImage(image) if isinstance(image, Tensor) else image for image in images]
