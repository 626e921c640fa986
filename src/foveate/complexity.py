"""What a model costs: its parameters, and its multiplications by the paper's equation."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foveate.models import Model

# Blocks that multiply each channel by a gate, by the class names that timm's models and ours have for them.
GATED = {"SqueezeExcite", "SEModule", "SqueezeExcitation"}


@dataclass(frozen=True, slots=True)
class Parameters:
    """Trainable parameters, and the total that the paper's tables give: with moving statistics and baseline."""

    trainable: int
    total: int


@dataclass(frozen=True, slots=True)
class Flops:
    """Multiplications of convolutions and dense layers (Eq. 10), and with those of squeeze-excitation gates."""

    flops: int
    with_gates: int


def count_parameters(model: nn.Module) -> Parameters:
    """Trainable and total parameters."""
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    total = sum(value.numel() for value in model.state_dict().values() if value.is_floating_point())
    return Parameters(trainable, total)


def count_flops(model: Model, image_size: tuple[int, int], locations: Sequence[int] = ()) -> Flops:
    """The multiplications for one image of ``image_size`` (width, height); nothing is really computed.

    As in the paper, "0 locations" includes the location module that would decide on the next ones.
    """
    double = copy.deepcopy(model).to("meta").eval()
    multiplied = gated = 0

    def multiply(layer: nn.Module, _inputs: object, output: Tensor) -> None:
        nonlocal multiplied
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            multiplied += layer.weight[0].numel() * output.numel()  # (C_in k^2) (H_out W_out C_out)

    def gate(_layer: nn.Module, _inputs: object, output: Tensor) -> None:
        nonlocal gated
        gated += output.numel()

    for part in double.modules():
        part.register_forward_hook(multiply)
        if type(part).__name__ in GATED:
            part.register_forward_hook(gate)
    with torch.no_grad():
        double.rehearse(image_size, locations)
    return Flops(multiplied, multiplied + gated)


def dial(locations: Sequence[int]) -> list[tuple[int, ...]]:
    """The settings on the way to ``locations``, as the paper's tables list them: (2, 1) -> (), 1, 2, (2, 1)."""
    settings: list[tuple[int, ...]] = [()]
    for depth, fanout in enumerate(locations):
        settings += [(*locations[:depth], count) for count in range(1, fanout + 1)]
    return settings
