"""What a model costs: its parameters, and its multiplications by the paper's equation."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foveate.backbones import Candidate, LocationMap, best_candidate, candidates
from foveate.models import Model, TNet, WholeImage
from foveate.models.whole_image import refuse_locations
from foveate.traversal import check_locations, glimpses_per_level

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


@dataclass(frozen=True, kw_only=True, slots=True)
class DialSetting:
    """What one setting of the dial costs for one image."""

    locations: tuple[int, ...]
    glimpses: int
    flops: int
    flops_with_gates: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelGeometry:
    """The regions of one level: their size in the image, the pixels that one of the base resolution stands for."""

    level: int
    candidates: int
    width: float
    height: float
    shrink: tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """All that ``foveate info`` tells of a model."""

    model: str
    backbone: str
    num_classes: int
    in_chans: int
    image_size: tuple[int, int]
    parameters: Parameters
    dial: tuple[DialSetting, ...]
    levels: tuple[LevelGeometry, ...]
    location_map: LocationMap | None
    candidates: tuple[Candidate, ...]

    @property
    def automatic(self) -> Candidate | None:
        """The location map that the fit alone would choose."""
        return best_candidate(self.candidates) if self.candidates else None


def describe(model: Model, image_size: tuple[int, int], locations: int | Sequence[int] | None = None) -> Description:
    """A model's parameters, its cost at every setting up to ``locations``, and what it sees of such an image."""
    config = model.config
    if isinstance(model, WholeImage):
        levels: tuple[LevelGeometry, ...] = ()
        found: tuple[Candidate, ...] = ()
        refuse_locations(locations)
        counts: tuple[int, ...] = ()
    else:
        wanted = (model.config.locations or ()) if locations is None else locations
        counts = check_locations(wanted, model.grid.cells)
        levels = _levels(model, image_size, len(counts))
        found = tuple(
            candidates(
                model.backbone.network, in_chans=config.in_chans, base=model.config.first_side, grid=model.grid
            )
        )
    return Description(
        model=config.name,
        backbone=config.backbone,
        num_classes=config.num_classes,
        in_chans=config.in_chans,
        image_size=image_size,
        parameters=count_parameters(model),
        dial=tuple(_setting(model, image_size, setting) for setting in dial(counts)),
        levels=levels,
        location_map=model.config.location_map if isinstance(model, TNet) else None,
        candidates=found,
    )


def _setting(model: Model, image_size: tuple[int, int], locations: tuple[int, ...]) -> DialSetting:
    cost = count_flops(model, image_size, locations)
    return DialSetting(
        locations=locations,
        glimpses=sum(glimpses_per_level(locations)),
        flops=cost.flops,
        flops_with_gates=cost.with_gates,
    )


def _levels(model: TNet, image_size: tuple[int, int], depth: int) -> tuple[LevelGeometry, ...]:
    width, height = (float(side) for side in image_size)
    found = []
    for level in range(1, depth + 2):
        side = model.config.first_side if level == 1 else model.config.base
        shrink = (width / side, height / side)
        found.append(
            LevelGeometry(
                level=level,
                candidates=model.grid.cells ** (level - 1),
                width=width,
                height=height,
                shrink=shrink,
            )
        )
        x, y = model.grid.axes(width, height)
        width, height = x.length, y.length
    return tuple(found)
