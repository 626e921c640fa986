"""Location pre-training: the location module learns from what the network itself finds in the cells.

REINFORCE learns where to look only after it has looked there by chance, which takes long when the object fills a
small part of the scene. Here all cells of some images are scored without gradient, the walk is led to those with the
most evidence, and the location module is taught their order. Class labels are all that it takes.

Where the backbone is pre-trained, its features tell cells apart before training begins, but the classifier knows
nothing yet, and neither would its evidence. A warm start fits it to the features of some images' cells: seconds, for
the backbone stays as it is.
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
from foveate.objectives import surest
from foveate.selection import Select, Selection
from foveate.sources import ImageSource

Evidence = Literal["label", "claim"]
EVIDENCE: tuple[Evidence, ...] = ("label", "claim")

WARM_STARTED = ("position", "classifier")
# A linear classifier on fixed features: it takes seconds whatever the backbone. At ten times the rate it fails.
WARM_STEPS, WARM_RATE, WARM_DECAY = 600, 1e-3, 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TeachingOptions:
    """``share`` of each batch is scored and taught from, until the share ``until`` of training has passed.

    Evidence of a cell is how probable it makes the image's ``label``, or how much it claims: how far its classes are
    from those of all cells together (``claim``). Labels lead the walk to whatever already looks right, so that
    nothing contradicts a wrong idea; claims do not. ``temperature`` softens the order that is taught, ``weight`` is
    that of the loss term. ``guide`` leads the walk of scored images as well. ``reach`` lets what is taught change the
    backbone too, which no reward ever does: so it learns to tell at first sight what it could only tell from near.
    ``warm_start`` is from how many images the classifier learns before training begins.
    """

    warm_start: int = 0
    share: float = 0.0
    until: float = 1.0
    evidence: Evidence = "claim"
    temperature: float = 1.0
    weight: float = 1.0
    guide: bool = True
    reach: bool = False

    def __post_init__(self) -> None:
        if self.warm_start < 0:
            raise ValueError(f"warm_start must not be negative, got {self.warm_start}")
        for name in ("share", "until"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name)}")
        if self.temperature <= 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")
        if self.weight < 0:
            raise ValueError(f"weight must not be negative, got {self.weight}")
        if self.evidence not in EVIDENCE:
            raise ValueError(f"evidence must be one of {', '.join(EVIDENCE)}, got {self.evidence!r}")


@torch.no_grad()
def scan(model: TNet, sources: Sequence[ImageSource]) -> Tensor:
    """What each cell of each image alone would be taken for: logits (B, cells, classes)."""
    with _undisturbed(model):
        return _classify(model, cell_features(model, sources))


@torch.no_grad()
def cell_features(model: TNet, sources: Sequence[ImageSource]) -> Tensor:
    """What the backbone makes of each cell of each image: (B, cells, D)."""
    regions = [model.grid.regions(Region.whole(source.size), range(model.grid.cells)) for source in sources]
    glimpses, _ = model.reader(sources, regions)
    with _undisturbed(model):
        features, _ = model.backbone(glimpses.to(model.anchor), depth=1, mapped=False)
    return torch.unflatten(features, 0, (len(sources), model.grid.cells))


def warm_start(model: TNet, features: Tensor, labels: Tensor, *, generator: torch.Generator) -> float:
    """Fits the classifier to cells' features (n, cells, D), so that of each class an image's surest cell speaks.

    The classifier begins anew; how positions are worked in changes, too. All glimpses will count alike at first.
    Returns the last loss.
    """
    # Cells that begin with claims at random would be believed: the surest of them speak.
    for part in (model.classifier, model.weigh.score if model.weigh else nn.Identity()):
        for parameter in part.parameters():
            nn.init.zeros_(parameter)
    parameters = [parameter for name in WARM_STARTED for parameter in getattr(model, name).parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=WARM_RATE, weight_decay=WARM_DECAY)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, WARM_STEPS)
    loss = features.new_zeros(())
    with torch.enable_grad():
        for _ in range(WARM_STEPS):
            chosen = torch.randint(len(labels), (min(64, len(labels)),), generator=generator).to(labels.device)
            spoken = surest(_classify(model, features[chosen]))  # (b, classes)
            loss = nn.functional.cross_entropy(spoken, labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return float(loss.detach())


def _classify(model: TNet, features: Tensor) -> Tensor:
    """What each cell alone would be taken for, by its feature (B, cells, D): logits (B, cells, classes)."""
    index = torch.arange(model.grid.cells, device=features.device)
    position = torch.stack((index // model.grid.columns, index % model.grid.columns, torch.ones_like(index)), 1)
    encoded = model.position(features.flatten(0, 1), position.repeat(len(features), 1))
    return torch.unflatten(model.classifier(encoded), 0, features.shape[:2])


def evidence(logits: Tensor, labels: Tensor, kind: Evidence) -> Tensor:
    """How much each cell (B, cells, classes) has to say -> (B, cells)."""
    log_p = logits.float().log_softmax(-1)
    if kind == "label":
        return log_p.gather(2, labels.view(-1, 1, 1).expand(-1, log_p.shape[1], 1)).squeeze(2)
    usual = log_p.logsumexp((0, 1)) - torch.tensor(float(log_p.shape[0] * log_p.shape[1])).log()
    return (log_p.exp() * (log_p - usual)).sum(-1)


def first_logits(model: TNet, sources: Sequence[ImageSource], *, reach: bool) -> Tensor:
    """What the location module makes of each cell at first sight (B, cells), before that is made a policy.

    Gradients reach the backbone or they do not. They are not those of the policy: logits of length 1 learn ever more
    slowly the longer they have become before.
    """
    glimpses, _ = model.first_reader(sources, [[Region.whole(source.size)] for source in sources])
    with torch.set_grad_enabled(reach and torch.is_grad_enabled()):
        features, maps = model.backbone(glimpses.to(model.anchor))
    assert maps is not None
    logits: Tensor = model.locate(maps.flatten(2).transpose(1, 2), features)
    return logits


def guided_by(found: Tensor, otherwise: Select) -> Select:
    """For one walk: opens the cells with the most evidence (n, cells) in the first n images; deeper, as otherwise."""
    at_first_level = True

    def select(probabilities: Tensor, k: int) -> Selection:
        nonlocal at_first_level
        own = otherwise(probabilities, k)
        if not at_first_level:
            return own
        at_first_level = False
        led = found.topk(k, dim=-1).indices.sort(-1).values.unsqueeze(1)  # (n, 1, k)
        log_led = probabilities[: len(found)].gather(-1, led).log().sum(-1)
        return Selection(
            torch.cat((led, own.cells[len(found) :])), torch.cat((log_led, own.log_probability[len(found) :]))
        )

    return select


def teach(logits: Tensor, found: Tensor, temperature: float) -> Tensor:
    """How far the order of the logits (n, cells) is from that of the evidence (n, cells): a divergence, 0 at best."""
    target = torch.log_softmax(found / temperature, -1)
    return nn.functional.kl_div(torch.log_softmax(logits, -1), target, reduction="batchmean", log_target=True)


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
