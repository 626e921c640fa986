"""What the processes of one training run tell each other, so that all of them go on or all of them stop.

Where there is one process only, nothing is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from lightning.pytorch import Trainer
from torch import Tensor


class TrainingError(RuntimeError):
    """Training cannot go on, and why; what was saved before is still there."""


def texts_of_all(trainer: Trainer, text: str) -> list[str]:
    """What each process has to say, by rank."""
    if trainer.world_size == 1:
        return [text]
    device = trainer.strategy.root_device
    mine = torch.tensor(list(text.encode()), dtype=torch.uint8, device=device)
    longest = int(trainer.strategy.reduce(torch.tensor(len(mine), device=device), reduce_op="max"))
    if not longest:
        return [""] * trainer.world_size
    rows = trainer.strategy.all_gather(F.pad(mine, (0, longest - len(mine))))
    return [bytes(row.tolist()).rstrip(b"\0").decode() for row in rows]


def raise_together(trainer: Trainer, trouble: str) -> None:
    """Raises in every process what is wrong in any: else those that are well would wait for the others for ever."""
    told = [text for text in texts_of_all(trainer, trouble) if text]
    if told:
        raise TrainingError(told[0])


def means_of_all(trainer: Trainer, values: Sequence[float]) -> list[float]:
    """The mean over all processes of each value."""
    if trainer.world_size == 1:
        return list(values)
    mine = torch.tensor(values, dtype=torch.float64, device=trainer.strategy.root_device)
    means: list[float] = trainer.strategy.reduce(mine, reduce_op="mean").tolist()
    return means


def rows_of_all(trainer: Trainer, rows: Tensor) -> Tensor:
    """The rows of all processes, which have equally many, in turn: as one process would have them."""
    if trainer.world_size == 1:
        return rows
    return trainer.strategy.all_gather(rows).transpose(0, 1).flatten(0, 1)
