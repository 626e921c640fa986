"""Location pre-training: the location module learns from what the network itself finds in the cells.

REINFORCE learns where to look only after it has looked there by chance, which takes long when the object fills a
small part of the scene. Here all cells of some images are scored without gradient, the walk is led to those with the
most evidence, and the location module is taught their order. Class labels are all that it takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from foveate.geometry import Region
from foveate.models import TNet
from foveate.selection import Select, Selection
from foveate.sources import ImageSource

Evidence = Literal["label", "claim"]
EVIDENCE: tuple[Evidence, ...] = ("label", "claim")


@dataclass(frozen=True, kw_only=True, slots=True)
class TeachingOptions:
    """``share`` of each batch is scored and taught from, until the share ``until`` of training has passed.

    Evidence of a cell is how probable it makes the image's ``label``, or how much it claims: how far its classes are
    from those of all cells together (``claim``). Labels lead the walk to whatever already looks right, so that
    nothing contradicts a wrong idea; claims do not. ``temperature`` softens the order that is taught, ``sharpness``
    undoes the smoothing of the policy, ``weight`` is that of the loss term. ``guide`` leads the walk of scored images
    as well.
    """

    share: float = 0.0
    until: float = 1.0
    evidence: Evidence = "claim"
    temperature: float = 1.0
    sharpness: float = 10.0
    weight: float = 1.0
    guide: bool = True

    def __post_init__(self) -> None:
        for name in ("share", "until"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name)}")
        for name in ("temperature", "sharpness"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.weight < 0:
            raise ValueError(f"weight must not be negative, got {self.weight}")
        if self.evidence not in EVIDENCE:
            raise ValueError(f"evidence must be one of {', '.join(EVIDENCE)}, got {self.evidence!r}")


@torch.no_grad()
def scan(model: TNet, sources: Sequence[ImageSource]) -> Tensor:
    """What each cell of each image alone would be taken for: logits (B, cells, classes)."""
    cells = model.grid.cells
    regions = [model.grid.regions(Region.whole(source.size), range(cells)) for source in sources]
    glimpses, _ = model.reader(sources, regions)
    index = torch.arange(cells)
    position = torch.stack((index // model.grid.columns, index % model.grid.columns, torch.ones_like(index)), 1)
    with _undisturbed(model):
        seen = model.look(glimpses, position.repeat(len(sources), 1), False)
        logits: Tensor = model.classifier(seen.encoded)
    return logits.view(len(sources), cells, -1)


def evidence(logits: Tensor, labels: Tensor, kind: Evidence) -> Tensor:
    """How much each cell (B, cells, classes) has to say -> (B, cells)."""
    log_p = logits.float().log_softmax(-1)
    if kind == "label":
        return log_p.gather(2, labels.view(-1, 1, 1).expand(-1, log_p.shape[1], 1)).squeeze(2)
    usual = log_p.logsumexp((0, 1)) - torch.tensor(float(log_p.shape[0] * log_p.shape[1])).log()
    return (log_p.exp() * (log_p - usual)).sum(-1)


def guided_by(found: Tensor, otherwise: Select) -> Select:
    """Opens the cells with the most evidence (n, cells) in the first level of the first n images."""

    def select(probabilities: Tensor, k: int) -> Selection:
        own = otherwise(probabilities, k)
        if probabilities.shape[1] > 1:
            return own
        led = found.topk(k, dim=-1).indices.sort(-1).values.unsqueeze(1)  # (n, 1, k)
        log_led = probabilities[: len(found)].gather(-1, led).log().sum(-1)
        return Selection(
            torch.cat((led, own.cells[len(found) :])), torch.cat((log_led, own.log_probability[len(found) :]))
        )

    return select


def teach(probabilities: Tensor, found: Tensor, options: TeachingOptions) -> Tensor:
    """Cross-entropy of the policy (n, cells), sharpened, against the order of the evidence (n, cells)."""
    target = torch.softmax(found / options.temperature, -1)
    log_policy = torch.log_softmax(options.sharpness * probabilities.log(), -1)
    return -(target * log_policy).sum(-1).mean()


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """No dropout; batch norms that are learning use the statistics of what they see, and keep none of them."""
    learning = [
        part for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training
    ]
    modes = {part: part.training for part in model.modules()}
    model.eval()
    for norm in learning:
        norm.training, norm.track_running_stats = True, False
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
        for norm in learning:
            norm.track_running_stats = True
