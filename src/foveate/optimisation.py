"""Which parameters learn how fast, when, and what is decayed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

Decayed = Literal["all", "new"]
Shape = Literal["step", "cosine"]

# BatchNorm in all its dimensions, and the others that carry a scale and a shift.
_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerOptions:
    """Adam. ``backbone_lr`` is the rate of the backbone where that is pre-trained; None gives it ``lr`` as well. What
    took a warm start goes along with the backbone.

    ``weight_decay`` is the official L2 term of the loss: over all parameters but those of norms, or over those of the
    ``new`` modules alone, as on CUB and NABirds. ``decoupled`` is AdamW's own decay. ``clip`` is the largest norm of
    the gradient, 0 for none. The authors' epsilon is 1e-7 where the paper says 1e-8.
    """

    lr: float = 1e-3
    backbone_lr: float | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    decayed: Decayed = "all"
    decoupled: float = 0.0
    clip: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))
        if self.lr <= 0 or (self.backbone_lr is not None and self.backbone_lr < 0):
            raise ValueError(f"lr must be positive, got lr {self.lr} and backbone_lr {self.backbone_lr}")
        for name in ("weight_decay", "decoupled", "clip"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.decayed not in ("all", "new"):
            raise ValueError(f"decayed must be 'all' or 'new', got {self.decayed!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleOptions:
    """How long training takes, in ``epochs`` or in ``minutes``, and what becomes of the learning rate meanwhile.

    ``step`` multiplies it by ``factor`` once each of ``drops`` (shares of the whole) has passed; ``cosine`` lets it
    fall to 0. Before either it rises linearly over the share ``warmup``. A step is ``batch`` images, put together
    from ``accumulate`` passes of ``batch / accumulate`` each.
    """

    epochs: float | None = None
    minutes: float | None = None
    batch: int = 64
    accumulate: int = 1
    shape: Shape = "step"
    drops: tuple[float, ...] = (0.8,)
    factor: float = 0.1
    warmup: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "drops", tuple(self.drops))
        if (self.epochs is None) == (self.minutes is None):
            raise ValueError(f"schedule must have either epochs or minutes, got {self.epochs} and {self.minutes}")
        if (self.epochs or self.minutes or 0) <= 0:
            raise ValueError(f"schedule must be longer than nothing, got {self.epochs or self.minutes}")
        if self.batch < 1 or self.accumulate < 1 or self.batch % self.accumulate:
            raise ValueError(f"batch must be a multiple of accumulate, got {self.batch} and {self.accumulate}")
        if self.shape not in ("step", "cosine"):
            raise ValueError(f"shape must be 'step' or 'cosine', got {self.shape!r}")
        if not all(0 < drop < 1 for drop in self.drops) or not 0 <= self.warmup < 1:
            raise ValueError(f"drops and warmup must be shares of the whole, got {self.drops} and {self.warmup}")

    def rate(self, progress: float) -> float:
        """What the learning rates are multiplied by when the share ``progress`` of training has passed."""
        if progress < self.warmup:
            return progress / self.warmup
        if self.shape == "cosine":
            return (1 + math.cos(math.pi * (progress - self.warmup) / (1 - self.warmup))) / 2
        # PiecewiseConstantDecay keeps the old value at the boundary itself.
        return self.factor ** sum(progress > drop for drop in self.drops)


def build_optimizer(
    model: nn.Module, options: OptimizerOptions, *, learned: Sequence[str] = ()
) -> torch.optim.Optimizer:
    """Adam with a group for the new modules and one for the backbone; each knows the rate it began with.

    The modules ``learned`` are not new: they have learned something before.
    """
    new, backbone = split_parameters(model, learned)
    slow = options.lr if options.backbone_lr is None else options.backbone_lr
    groups = [
        {"params": parameters, "lr": lr, "initial_lr": lr}
        for parameters, lr in ((new, options.lr), (backbone, slow))
        if parameters
    ]
    if options.decoupled:
        return torch.optim.AdamW(groups, betas=options.betas, eps=options.epsilon, weight_decay=options.decoupled)
    return torch.optim.Adam(groups, betas=options.betas, eps=options.epsilon)


def split_parameters(model: nn.Module, learned: Sequence[str] = ()) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """What begins anew, and what may be pre-trained: the network, and the modules ``learned``."""
    old = tuple(f"{module}." for module in ("backbone", "network", *learned))
    new: list[nn.Parameter] = []
    backbone: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (backbone if name.startswith(old) else new).append(parameter)
    return new, backbone


def decayed_parameters(model: nn.Module, which: Decayed) -> list[Tensor]:
    """What the official L2 term sums over: biases too, but nothing that belongs to a norm."""
    norms = {id(p) for part in model.modules() if isinstance(part, _NORMS) for p in part.parameters()}
    new, backbone = split_parameters(model)
    return [p for p in (new if which == "new" else new + backbone) if id(p) not in norms]
