"""A glimpse -> its feature vector, and the feature map sampled on the grid; for any timm CNN."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import timm
import torch
from timm.layers.drop import DropPath
from timm.models.efficientnet import EfficientNet
from torch import Tensor, nn

from foveate.geometry import Grid
from foveate.layers import at_depth, initialise_fan_out
from foveate.receptive_fields import Field, LayerField, receptive_fields

# The effective receptive field is smaller than the theoretical one; this is the share of its side that counts.
# With it the choice falls on the published layer in all six EfficientNet models: see docs/location-map.md.
EFFECTIVE_SHARE = 0.875

# Below, the best layer sees a small part of each cell, or far more than it: no description of the cell.
LEAST_OVERLAP = 0.1

# 4 glimpses of 224 px: with more, activations outgrow what the allocator keeps, and every layer pays for fresh
# pages. Measured on EfficientNet-B0, see docs/benchmarks.md.
CPU_PASS_PIXELS = 4 * 224 * 224


@dataclass(frozen=True, kw_only=True, slots=True)
class LocationMap:
    """Which layer's output describes the grid's cells, its channels, and the map's rows and columns to use."""

    layer: str
    channels: int
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(self.rows))
        object.__setattr__(self, "columns", tuple(self.columns))


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A layer that could serve as location map: the pixels that fit the cells best, and how well they fit."""

    map: LocationMap
    height: int
    width: int
    stride: float
    field: float  # side of the theoretical receptive field, in pixels of the glimpse
    overlap: float  # mean intersection over union of effective receptive fields and cells


def build_network(name: str, *, in_chans: int, pretrained: bool = False, **dropping: float) -> nn.Module:
    """A timm model without its classifier: glimpses (N, in_chans, h, w) -> feature vectors (N, D).

    ``dropping`` are ``stochastic_depth``, the highest probability of leaving a block out in training, and
    ``spatial_dropout``, that of leaving out a channel of the last map (BagNet-77 alone has it).
    """
    if not timm.is_model(name):
        close = ", ".join(timm.list_models(f"*{name.split('.')[0]}*")[:5]) or "see timm.list_models()"
        raise ValueError(f"backbone must be the name of a timm model, got {name!r} (close: {close})")
    known = {"stochastic_depth": "drop_path_rate", "spatial_dropout": "spatial_dropout"}
    rates: dict[str, Any] = {known[option]: rate for option, rate in dropping.items() if rate}
    try:
        network = timm.create_model(name, pretrained=pretrained, num_classes=0, in_chans=in_chans, **rates)
    except TypeError as error:
        raise ValueError(f"backbone must know what is to be dropped, got {name} with {dropping}: {error}") from error
    if "drop_path_rate" in rates:
        _drop_as_published(network, rates["drop_path_rate"])
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d) and part.eps == 1e-3:
            part.momentum = 0.01  # TensorFlow's constants come together; timm sets only the epsilon
    if name.startswith("tf_efficientnet") and not pretrained:
        initialise_fan_out(network)  # as TensorFlow does: timm does not cut the normal distribution off
    return network


def _drop_as_published(network: nn.Module, highest: float) -> None:
    """EfficientNet's stochastic depth as TNet's authors count: block b of B is left out with b / B of the rate.

    timm counts from 0, so that its last block does not reach the rate that was asked for.
    """
    if not isinstance(network, EfficientNet):
        return
    blocks = [block for stage in network.blocks.children() for block in stage.children()]
    for number, block in enumerate(blocks, 1):
        if isinstance(block.drop_path, DropPath):
            block.drop_path.drop_prob = highest * number / len(blocks)


def is_backbone(name: str) -> bool:
    """Whether timm has a model of this name."""
    return bool(timm.is_model(name))


def feature_size(network: nn.Module) -> int:
    """The length of the feature vectors that a network without classifier gives."""
    return int(getattr(network, "head_hidden_size", None) or network.num_features)  # type: ignore[arg-type]


def pass_size(glimpses: Tensor) -> int:
    """How many glimpses go through the network together: all, but for inference on a CPU a few.

    There many small passes are about twice as fast as one large one, and need a fraction of its memory.
    """
    if torch.is_grad_enabled() or glimpses.device.type != "cpu":
        return max(1, len(glimpses))
    return max(1, CPU_PASS_PIXELS // glimpses[0, 0].numel())


class Backbone(nn.Module):
    """A network together with the sampled map of one of its inner layers.

    ``mean`` and ``std`` are what the network was trained with, for pixels in [0, 1]; glimpses are in [-1, 1].
    """

    def __init__(
        self,
        network: nn.Module,
        location_map: LocationMap,
        *,
        mean: Sequence[float] = (0.5,),
        std: Sequence[float] = (0.5,),
    ) -> None:
        super().__init__()
        self.network = network
        self.location_map = location_map
        self.normalise = Normalise(mean, std)
        self._maps: dict[int, Tensor | None] = {}  # of passes that are under way and asked for it
        layer = dict(network.named_modules()).get(location_map.layer)
        if layer is None:
            raise ValueError(f"location map must name a layer of the backbone, got {location_map.layer!r}")
        layer.register_forward_hook(self._keep_map)

    def _keep_map(self, _layer: nn.Module, _args: object, output: Tensor) -> None:
        # By thread, so that one model can serve several at a time; at once, for later layers may work in place.
        if threading.get_ident() not in self._maps:
            return
        chosen = self.location_map
        height, width = max(chosen.rows) + 1, max(chosen.columns) + 1
        if (
            output.ndim != 4
            or output.shape[1] != chosen.channels
            or output.shape[2] < height
            or output.shape[3] < width
        ):
            raise ValueError(
                f"location map {chosen.layer} must have {chosen.channels} channels and at least {height} x {width} "
                f"pixels, got {tuple(output.shape[1:])}"
            )
        self._maps[threading.get_ident()] = output[:, :, chosen.rows][..., chosen.columns]

    def forward(self, glimpses: Tensor, *, depth: int = 0, mapped: bool = True) -> tuple[Tensor, Tensor | None]:
        """(N, C, h, w) -> features (N, D) and, if ``mapped``, the location map (N, channels, rows, columns).

        ``depth`` is the level of the walk that the glimpses are of, 0 that of the whole image.
        """
        # In training a level is one pass: batch norm must see all of it.
        size = max(1, len(glimpses)) if self.training else pass_size(glimpses)
        with at_depth(depth):
            passes = [self._pass(part, mapped) for part in glimpses.split(size)]
        maps = [found for _, found in passes if found is not None]
        return torch.cat([features for features, _ in passes]), torch.cat(maps) if maps else None

    def _pass(self, glimpses: Tensor, mapped: bool) -> tuple[Tensor, Tensor | None]:
        if mapped:
            self._maps[threading.get_ident()] = None
        features = self.network(self.normalise(glimpses))
        return features, self._maps.pop(threading.get_ident(), None)


class Normalise(nn.Module):
    """Pixels in [-1, 1] -> (pixels in [0, 1] - mean) / std."""

    scale: Tensor
    shift: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        centre, spread = torch.tensor(mean), torch.tensor(std)
        self.register_buffer("scale", (0.5 / spread).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("shift", ((0.5 - centre) / spread).view(1, -1, 1, 1), persistent=False)
        self.identity = bool((self.scale == 1).all() and (self.shift == 0).all())

    def forward(self, pixels: Tensor) -> Tensor:
        """(N, C, h, w) -> (N, C, h, w)."""
        return pixels if self.identity else pixels * self.scale + self.shift


def candidates(network: nn.Module, *, in_chans: int, base: int, grid: Grid) -> list[Candidate]:
    """Every layer with a map fine enough for the grid, each with its best pixels; in order of execution."""
    device = next(network.parameters()).device
    layers = receptive_fields(network, torch.zeros(1, in_chans, base, base, device=device))
    x_cells, y_cells = grid.centres(base, base)
    cell_height, cell_width = (base * fraction for fraction in grid.cell)
    found = []
    for layer in layers:
        columns = _nearest(layer.field.x, layer.width, x_cells)
        rows = _nearest(layer.field.y, layer.height, y_cells)
        if len(set(columns)) == grid.columns and len(set(rows)) == grid.rows:
            overlap = _mean_overlap(layer.field.x, columns, x_cells, cell_width, base)
            overlap *= _mean_overlap(layer.field.y, rows, y_cells, cell_height, base)
            found.append(_candidate(layer, rows, columns, overlap))
    return found


def choose_location_map(network: nn.Module, *, in_chans: int, base: int, grid: Grid) -> LocationMap:
    """The layer and pixels whose receptive fields cover the cells best; of equals, the deepest layer."""
    found = candidates(network, in_chans=in_chans, base=base, grid=grid)
    if not found:
        raise ValueError(
            f"backbone must have a convolutional layer with one pixel for each cell of the {grid.rows} x "
            f"{grid.columns} grid at {base} x {base} px, got none: use a larger base, a coarser grid, another "
            "backbone, or give location_map"
        )
    best = best_candidate(found)
    if best.overlap < LEAST_OVERLAP:
        raise ValueError(
            f"backbone must have a layer that sees about a cell of {grid.cell[1] * base:.0f} x "
            f"{grid.cell[0] * base:.0f} px at a time, got {best.map.layer} at best, which sees {best.field:.0f} px: "
            f"use a CNN, another base or cell, or give location_map"
        )
    return best.map


def best_candidate(found: Sequence[Candidate]) -> Candidate:
    """The candidate whose receptive fields cover the cells best; of equals, the deepest."""
    return max(reversed(found), key=lambda candidate: candidate.overlap)


def _nearest(field: Field, length: int, centres: Sequence[float]) -> tuple[int, ...]:
    return tuple(min(range(length), key=lambda i: (abs(field.centre(i) - c), i)) for c in centres)


def _mean_overlap(field: Field, pixels: Sequence[int], centres: Sequence[float], cell: float, base: int) -> float:
    """Mean intersection over union of the pixels' effective fields with the cells, along one axis."""
    total = 0.0
    for pixel, centre in zip(pixels, centres, strict=True):
        half = field.size * EFFECTIVE_SHARE / 2
        low, high = max(field.centre(pixel) - half, 0), min(field.centre(pixel) + half, base)
        left, right = max(centre - cell / 2, 0), min(centre + cell / 2, base)
        common = max(0.0, min(high, right) - max(low, left))
        total += common / (max(high, right) - min(low, left))
    return total / len(centres)


def _candidate(layer: LayerField, rows: tuple[int, ...], columns: tuple[int, ...], overlap: float) -> Candidate:
    return Candidate(
        map=LocationMap(layer=layer.layer, channels=layer.channels, rows=rows, columns=columns),
        height=layer.height,
        width=layer.width,
        stride=layer.field.x.stride,
        field=layer.field.x.size,
        overlap=overlap,
    )
