"""TNet, the Traversal Network of "Hard-Attention for Scalable Image Classification" (NeurIPS 2021)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from foveate.backbones import Backbone, LocationMap, choose_location_map, feature_size
from foveate.geometry import Convention, Grid
from foveate.glimpses import GlimpseReader
from foveate.layers import (
    AddPosition,
    ConcatenatePosition,
    Coordinates,
    FeatureWeighting,
    SqueezeExcite,
    give_levels_their_norms,
    initialise_fan_out,
    initialise_glorot,
    policy,
)
from foveate.models.configuration import ModelConfig, check_count, same_network, usual_normalisation
from foveate.selection import Select, top_k
from foveate.sources import ImageSource, as_sources
from foveate.traversal import Look, Prediction, Walk, check_locations, glimpses_per_level, traverse
from foveate.weights import HubModel

Modules = Literal["light", "wide"]
MODULES: tuple[Modules, ...] = ("light", "wide")


@dataclass(frozen=True, kw_only=True)
class TNetConfig(ModelConfig):
    """Everything that a TNet is made from.

    ``modules`` are the paper's two designs of its location and position modules: ``light`` (appendix, Table 3)
    gives the location module context by squeeze-excitation and adds the position to the feature; ``wide``
    (Table 2) gives it the feature vector and concatenates. ``locations`` is the dial's usual setting. ``glance`` is
    the side of the first look, at the whole image; None is ``base``, as that of all others. With a glance of its
    own a walk has two levels at most: the location map is fitted to the glance. ``level_norms`` gives each level
    of the usual walk batch norms of its own; published models share theirs.
    """

    name: str = "tnet"
    base: int = 224
    glance: int | None = None
    grid: tuple[int, int] = (5, 5)
    cell: tuple[float, float] = (0.35, 0.35)
    convention: Convention = "paper"
    modules: Modules = "light"
    level_norms: bool = False
    weighting: bool = True
    locations: tuple[int, ...] | None = None
    location_map: LocationMap | None = None
    architecture: Literal["tnet"] = "tnet"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._settle(grid=_pair(self.grid), cell=_pair(self.cell))
        cells = self.build_grid().cells
        usual = (min(5, cells),) if self.locations is None else tuple(self.locations)
        self._settle(locations=check_locations(usual, cells))
        if isinstance(self.location_map, Mapping):
            self._settle(location_map=LocationMap(**self.location_map))
        if self.location_map is not None:
            shape = (len(self.location_map.rows), len(self.location_map.columns))
            if shape != self.grid:
                raise ValueError(f"location_map must have a row and a column for each of {self.grid}, got {shape}")
        check_count("base", self.base)
        if self.glance is not None:
            check_count("glance", self.glance)
        self.check_depth(self.locations or ())
        if self.modules not in MODULES:
            raise ValueError(f"modules must be one of {MODULES}, got {self.modules!r}")

    @property
    def first_side(self) -> int:
        """The side of the first look."""
        return self.base if self.glance is None else self.glance

    def check_depth(self, locations: Sequence[int]) -> None:
        """Refuses a walk that would need a location map of deeper levels where that is fitted to the glance."""
        if len(locations) > 1 and self.first_side != self.base:
            raise ValueError(f"locations must be of one level where glance is not base, got {tuple(locations)}")

    def build_grid(self) -> Grid:
        """The grid of candidate cells."""
        return Grid(rows=self.grid[0], columns=self.grid[1], cell=self.cell, convention=self.convention)


class LightLocation(nn.Module):
    """Location module of appendix Table 3: its context is squeeze-excitation over the grid."""

    def __init__(self, channels: int, _features: int, grid: Grid) -> None:
        super().__init__()
        self.project = nn.Linear(channels, channels)
        self.context = SqueezeExcite(channels, channels // 2)
        self.coordinates = Coordinates(grid.rows, grid.columns)
        self.fuse = nn.Linear(channels + 2, channels)
        self.score = nn.Linear(channels, 1)
        # All of these are 1x1 convolutions in the paper, and begin as such.
        initialise_fan_out(self, linear_as_convolution=True)
        self.coordinates.reset_parameters()

    def forward(self, cells: Tensor, _features: Tensor) -> Tensor:
        """Cells (N, cells, channels), features (N, D) -> logits (N, cells)."""
        cells = self.context(nn.functional.silu(self.project(cells)))
        cells = nn.functional.silu(self.fuse(self.coordinates(cells)))
        logits: Tensor = self.score(cells)
        return logits.squeeze(-1)


class WideLocation(nn.Module):
    """Location module of appendix Table 2: its context is the glimpse's own feature vector."""

    def __init__(self, channels: int, features: int, grid: Grid) -> None:
        super().__init__()
        self.coordinates = Coordinates(grid.rows, grid.columns)
        self.fuse = nn.Linear(channels + features + 2, 512)
        self.score = nn.Linear(512, 1)
        initialise_glorot(self)
        self.coordinates.reset_parameters()

    def forward(self, cells: Tensor, features: Tensor) -> Tensor:
        """Cells (N, cells, channels), features (N, D) -> logits (N, cells)."""
        context = features.unsqueeze(1).expand(-1, cells.shape[1], -1)
        cells = self.fuse(self.coordinates(torch.cat((cells, context), 2)))
        logits: Tensor = self.score(nn.functional.leaky_relu(cells, 0.2))
        return logits.squeeze(-1)


class TNet(
    nn.Module,
    HubModel,
    library_name="foveate",
    tags=["image-classification", "hard-attention"],
):
    """Looks at the whole image, then at the cells that it finds most informative, level by level."""

    config: TNetConfig
    reward_baseline: Tensor

    def __init__(self, config: TNetConfig, *, pretrained: bool = False) -> None:
        super().__init__()
        network = config.build_network(pretrained=pretrained)
        self.grid = config.build_grid()
        location_map = config.location_map or choose_location_map(
            network, in_chans=config.in_chans, base=config.first_side, grid=self.grid
        )
        self.config = self._hub_mixin_config = replace(config, location_map=location_map)
        features = feature_size(network)
        if config.level_norms:
            give_levels_their_norms(network, 1 + len(self.config.locations or ()))
        wide = config.modules == "wide"
        self.backbone = Backbone(network, location_map, mean=config.mean, std=config.std)
        self.locate = (WideLocation if wide else LightLocation)(location_map.channels, features, self.grid)
        self.position = (ConcatenatePosition if wide else AddPosition)(features)
        self.weigh = FeatureWeighting(features) if config.weighting else None
        self.classifier = nn.Sequential(nn.Dropout(config.dropout), nn.Linear(features, config.num_classes))
        for part in (self.position, self.weigh, self.classifier):
            if part is not None:
                (initialise_glorot if wide else initialise_fan_out)(part)
        # The moving average of the reward (Eq. 2): part of the published models and of their checkpoints.
        self.register_buffer("reward_baseline", torch.tensor(0.5))
        self.first_reader, self.reader = (
            GlimpseReader(size=(side, side), antialias=config.antialias) for side in (config.first_side, config.base)
        )

    def forward(
        self,
        images: Tensor | Sequence[ImageSource],
        locations: int | Sequence[int] | None = None,
        *,
        context: bool = True,
        select: Select = top_k,
    ) -> Prediction:
        """Images (B, C, H, W) in [-1, 1], or B sources -> logits (B, classes) and the walk.

        ``locations`` says how many cells to open in each region of each level, ``()`` none at all;
        ``context=False`` classifies from the opened cells only (paper 5.4); ``select`` chooses the cells.
        """
        wanted = (self.config.locations or ()) if locations is None else locations
        counts = check_locations(wanted, self.grid.cells)
        self.config.check_depth(counts)
        levels, cost = traverse(
            as_sources(images),
            self.look,
            grid=self.grid,
            locations=counts,
            readers=(self.first_reader, self.reader),
            select=select,
        )
        encoded = torch.cat([level.encoded for level in levels], 1)  # (B, 1 + attended, D)
        combined, weights = self.combine(encoded, context=context)
        logits = self.classifier(combined)
        if self.training:  # every region's own prediction, each level under a dropout mask of its own
            levels = tuple(replace(level, logits=self.classifier(level.encoded)) for level in levels)
        return Prediction(logits=logits, walk=Walk(levels=levels, weights=weights, cost=cost), combined=combined)

    @property
    def anchor(self) -> Tensor:
        """A tensor that says on which device and in which precision the model computes."""
        return self.reward_baseline

    def look(self, glimpses: Tensor, positions: Tensor, decide: bool) -> Look:
        """Glimpses (N, C, h, w) at positions (N, 3) -> what is seen, and where to look next."""
        self.config.check_channels(glimpses)
        glimpses, depth = glimpses.to(self.anchor), int(positions[0, 2])
        features, maps = self.backbone(glimpses, depth=depth, mapped=decide)  # (N, D), (N, c, rows, columns)
        encoded = self.position(features, positions.to(features.device))
        if maps is None:
            return Look(features=features, encoded=encoded)
        # The policy learns from rewards alone: they must not reach the backbone.
        cells = maps.detach().flatten(2).transpose(1, 2)  # (N, cells, c)
        return Look(features=features, encoded=encoded, probabilities=policy(self.locate(cells, features.detach())))

    def combine(self, encoded: Tensor, *, context: bool = True) -> tuple[Tensor, Tensor]:
        """All encoded features (B, 1 + attended, D), the whole image's first -> one (B, D), and their weights."""
        counted = encoded if context else encoded[:, 1:]
        if counted.shape[1] == 0:
            raise ValueError("context=False must come with at least 1 location, got none to classify from")
        if self.weigh is None:
            weights = counted.new_full(counted.shape[:2], 1 / counted.shape[1])
        else:
            weights = self.weigh(counted)
        combined = (weights.unsqueeze(-1) * counted).sum(1)
        return combined, weights if context else nn.functional.pad(weights, (1, 0))

    def rehearse(self, image_size: tuple[int, int], locations: Sequence[int]) -> None:
        """Passes empty tensors through all that one image of this size (width, height) needs, for counting.

        With no locations the location module is passed all the same, as in the paper's tables.
        """
        del image_size  # every glimpse is read at the base resolution
        like = self.anchor
        counts = glimpses_per_level(locations)
        encoded = []
        for depth, count in enumerate(counts):
            side = self.config.base if depth else self.config.first_side
            shape = (count, self.config.in_chans, side, side)
            positions = torch.tensor([[0, 0, depth]]).expand(count, 3)
            decide = depth < len(counts) - 1 or depth == 0
            encoded.append(self.look(like.new_zeros(shape), positions, decide).encoded)
        combined, _ = self.combine(torch.cat(encoded).unsqueeze(0))
        self.classifier(combined)


def _pair(value: Any) -> tuple[Any, Any]:
    """One number for both axes, or (rows' or height's, columns' or width's)."""
    pair = (value, value) if isinstance(value, (int, float)) else tuple(value)
    if len(pair) != 2:
        raise ValueError(f"grid and cell must be one number or (rows, columns), got {value!r}")
    return pair


def _even(start: int, stop: int, step: int) -> tuple[int, ...]:
    return tuple(range(start, stop, step))


def tnet(**options: Any) -> TNetConfig:
    """A TNet on any timm CNN, with that network's own input normalisation."""
    backbone = str(options.get("backbone", TNetConfig.backbone))
    return TNetConfig(**usual_normalisation(backbone, options.get("in_chans", 3)) | options)


def _published(
    name: str,
    location_map: tuple[str, int, tuple[int, ...]],
    locations: tuple[int, ...],
    usual: dict[str, Any],
) -> Callable[..., TNetConfig]:
    """A preset. Its location map is the authors' own and holds for their backbone, base and grid only."""
    layer, channels, pixels = location_map
    literal = LocationMap(layer=layer, channels=channels, rows=pixels, columns=pixels)

    def preset(**options: Any) -> TNetConfig:
        as_published: dict[str, Any] = {"name": name, "location_map": literal, "locations": locations} | usual
        published = TNetConfig(**as_published)
        backbone = options.get("backbone", published.backbone)
        if not same_network(backbone, published.backbone):
            # Another network: the published geometry and modules, but its own normalisation and location map.
            return TNetConfig(**usual | usual_normalisation(backbone, options.get("in_chans", 3)) | options)
        own = TNetConfig(**usual | options)
        moved = any(getattr(own, part) != getattr(published, part) for part in ("first_side", "grid", "cell"))
        return own if moved else TNetConfig(**as_published | options)

    preset.__doc__ = f"{name} as published."
    return preset


_BIRDS = {"num_classes": 200, "grid": (5, 5), "cell": (0.35, 0.35), "weighting": True}
_SCENES = {"num_classes": 62, "grid": (3, 3), "cell": (0.5, 0.5), "weighting": False}
_OBJECTS = {
    "backbone": "bagnet77",
    "base": 77,
    "cell": (0.34375, 0.34375),
    "modules": "wide",
    "weighting": False,
}


def _bird(size: str, layer: str, channels: int, pixels: tuple[int, ...]) -> Callable[..., TNetConfig]:
    usual = _BIRDS | {"backbone": f"tf_efficientnet_{size}.ns_jft_in1k"}
    return _published(f"tnet_{size}", (layer, channels, pixels), (5,), usual)


PRESETS: dict[str, Callable[..., TNetConfig]] = {
    "tnet": tnet,
    "tnet_imagenet": _published("tnet_imagenet", ("stages.stage4", 1024, _even(0, 9, 2)), (3,), _OBJECTS),
    "tnet_fmow": _published("tnet_fmow", ("blocks.3", 80, _even(2, 11, 4)), (2,), _SCENES),
    "tnet_b0": _bird("b0", "blocks.3.0", 80, _even(2, 12, 2)),
    "tnet_b1": _bird("b1", "blocks.2.1", 40, _even(5, 22, 4)),
    "tnet_b2": _bird("b2", "blocks.2.1", 48, _even(5, 22, 4)),
    "tnet_b3": _bird("b3", "blocks.2.1", 48, _even(5, 22, 4)),
    "tnet_b4": _bird("b4", "blocks.2.1", 56, _even(5, 22, 4)),
}
