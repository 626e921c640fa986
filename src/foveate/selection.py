"""Probabilities over a grid's cells -> the cells that are opened, and the probability of that choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen cells (..., k) in ascending order, and the log-probability (...) of choosing them."""

    cells: Tensor
    log_probability: Tensor


Select = Callable[[Tensor, int], Selection]
"""(probabilities (..., cells), k) -> Selection"""


def top_k(probabilities: Tensor, k: int) -> Selection:
    """The k likeliest cells; of equals, the one that comes first in row-major order.

    The log-probability is the plain sum of the cells' own (appendix 1.2), not that of a draw.
    """
    order = torch.sort(probabilities.detach(), dim=-1, descending=True, stable=True).indices
    cells = order[..., :k].sort(-1).values
    return Selection(cells, probabilities.gather(-1, cells).log().sum(-1))


def sample(probabilities: Tensor, k: int, *, generator: torch.Generator | None = None) -> Selection:
    """Draws k cells one after the other without replacement; the log-probability is that of Eq. 7.

    Adding Gumbel noise and keeping the k largest draws from the same distribution as the sequence of draws.
    """
    log_p = probabilities.log()
    noise = torch.empty_like(probabilities).exponential_(generator=generator).log().neg()
    drawn = (log_p.detach() + noise).topk(k, dim=-1).indices  # in the order of the draws
    return Selection(drawn.sort(-1).values, sequence_log_probability(probabilities, drawn))


def sequence_log_probability(probabilities: Tensor, drawn: Tensor) -> Tensor:
    """Eq. 7: log-probability of drawing cells (..., k) in this order, each from what earlier draws left over."""
    chosen = F.one_hot(drawn, probabilities.shape[-1])  # (..., k, cells)
    left_over = probabilities.unsqueeze(-2) * (1 - (chosen.cumsum(-2) - chosen))
    return (probabilities.gather(-1, drawn).log() - left_over.sum(-1).log()).sum(-1)
