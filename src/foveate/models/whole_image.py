"""The baselines: one network over the whole image at full resolution, in the shape of a walk of one glimpse."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor, nn

from foveate.backbones import Normalise, feature_size
from foveate.geometry import Grid
from foveate.glimpses import GlimpseReader
from foveate.layers import initialise_fan_out, initialise_glorot
from foveate.models.configuration import ModelConfig, check_count, same_network, usual_normalisation
from foveate.selection import top_k
from foveate.sources import ImageSource, as_sources
from foveate.traversal import Look, Prediction, Walk, traverse
from foveate.weights import HubModel


@dataclass(frozen=True, kw_only=True)
class WholeImageConfig(ModelConfig):
    """Everything that a baseline is made from.

    ``base`` is the side that every image is resized to; None takes images at their own size.
    """

    name: str = "whole_image"
    base: int | None = None
    architecture: Literal["whole_image"] = "whole_image"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base is not None:
            check_count("base", self.base)


class WholeImage(nn.Module, HubModel, library_name="foveate", tags=["image-classification"]):
    """A backbone and a linear classifier over the whole image: nothing is chosen, nothing is left out."""

    config: WholeImageConfig

    def __init__(self, config: WholeImageConfig, *, pretrained: bool = False) -> None:
        super().__init__()
        self.config = config
        self.network = config.build_network(pretrained=pretrained)
        self.normalise = Normalise(config.mean, config.std)
        features = feature_size(self.network)
        self.classifier = nn.Sequential(nn.Dropout(config.dropout), nn.Linear(features, config.num_classes))
        (initialise_glorot if config.backbone == "bagnet77" else initialise_fan_out)(self.classifier)
        size = None if config.base is None else (config.base, config.base)
        self.reader = GlimpseReader(size=size, antialias=config.antialias)

    def forward(
        self, images: Tensor | Sequence[ImageSource], locations: int | Sequence[int] | None = None
    ) -> Prediction:
        """Images (B, C, H, W) in [-1, 1], or B sources -> logits (B, classes) and a walk of one glimpse."""
        refuse_locations(locations)
        nowhere = Grid(rows=1, columns=1, cell=(1, 1))
        levels, cost = traverse(
            as_sources(images), self.look, grid=nowhere, locations=(), readers=[self.reader], select=top_k
        )
        features = levels[0].features  # (B, 1, D)
        combined = features.squeeze(1)
        logits = self.classifier(combined)
        if self.training:  # the one glimpse's own prediction is that of all: whatever its share, the loss is the same
            levels = tuple(replace(level, logits=logits.unsqueeze(1)) for level in levels)
        walk = Walk(levels=levels, weights=features.new_ones(features.shape[:2]), cost=cost)
        return Prediction(logits=logits, walk=walk, combined=combined)

    def look(self, images: Tensor, _positions: Tensor, _decide: bool) -> Look:
        """Images (B, C, H, W) -> features (B, D)."""
        self.config.check_channels(images)
        features = self.network(self.normalise(images.to(self.normalise.scale)))
        return Look(features=features, encoded=features)

    def rehearse(self, image_size: tuple[int, int], locations: Sequence[int] = ()) -> None:
        """Passes one empty image of this size (width, height) through, for counting."""
        refuse_locations(locations)
        width, height = image_size if self.config.base is None else (self.config.base, self.config.base)
        empty = self.normalise.scale.new_zeros(1, self.config.in_chans, height, width)
        self.classifier(self.network(self.normalise(empty)))


def refuse_locations(locations: int | Sequence[int] | None) -> None:
    """A model of the whole image opens no cells."""
    if any((locations,) if isinstance(locations, int) else locations or ()):
        raise ValueError(f"locations must be () for a model of the whole image, got {locations}")


def whole_image(**options: Any) -> WholeImageConfig:
    """Any timm network on whole images, with that network's own input normalisation."""
    backbone = str(options.get("backbone", WholeImageConfig.backbone))
    return WholeImageConfig(**usual_normalisation(backbone, options.get("in_chans", 3)) | options)


def _published(name: str, backbone: str) -> Callable[..., WholeImageConfig]:
    def preset(**options: Any) -> WholeImageConfig:
        if not same_network(options.get("backbone", backbone), backbone):
            return whole_image(**options)
        return WholeImageConfig(**{"name": name, "backbone": backbone} | options)

    preset.__doc__ = f"{name} as TNet's authors trained it: pixels in [-1, 1]."
    return preset


PRESETS: dict[str, Callable[..., WholeImageConfig]] = {
    "whole_image": whole_image,
    "bagnet77": _published("bagnet77", "bagnet77"),
    **{
        f"efficientnet_b{size}": _published(f"efficientnet_b{size}", f"tf_efficientnet_b{size}.ns_jft_in1k")
        for size in range(5)
    },
}
