"""What the configurations of all models have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import timm
from torch import Tensor, nn

from foveate.backbones import build_network


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A model's ``config.json``.

    ``dropout`` is before the classifier, ``stochastic_depth`` and ``spatial_dropout`` are in the backbone. Pixels are
    in [-1, 1]; ``mean`` and ``std`` are for pixels in [0, 1], as timm has them, and (0.5,) leaves pixels as they are.
    """

    name: str
    num_classes: int = 1000
    backbone: str = "tf_efficientnet_b0"
    in_chans: int = 3
    antialias: bool = False
    dropout: float = 0.0
    stochastic_depth: float = 0.0
    spatial_dropout: float = 0.0
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    class_names: tuple[str, ...] | None = None
    class_order: str = ""

    def __post_init__(self) -> None:
        self._settle(mean=tuple(self.mean), std=tuple(self.std))
        if self.class_names is not None:
            self._settle(class_names=tuple(self.class_names))
        for name in ("num_classes", "in_chans"):
            check_count(name, getattr(self, name))
        for name in ("dropout", "stochastic_depth", "spatial_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        if self.class_names is not None and len(self.class_names) != self.num_classes:
            raise ValueError(f"class_names must be {self.num_classes} names, got {len(self.class_names)}")
        for name in ("mean", "std"):
            if len(values := getattr(self, name)) not in (1, self.in_chans):
                raise ValueError(f"{name} must have 1 or {self.in_chans} values, got {len(values)}")

    def _settle(self, **values: object) -> None:
        """Writes values in their final form, as JSON knows lists and dicts only."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def check_channels(self, pixels: Tensor) -> None:
        """Refuses (N, C, h, w) with another number of channels than the model's."""
        if pixels.shape[1] != self.in_chans:
            raise ValueError(f"images must have {self.in_chans} channels, got {pixels.shape[1]}")

    def build_network(self, *, pretrained: bool) -> nn.Module:
        """The backbone's network, without classifier."""
        return build_network(
            self.backbone,
            in_chans=self.in_chans,
            pretrained=pretrained,
            stochastic_depth=self.stochastic_depth,
            spatial_dropout=self.spatial_dropout,
        )


def check_count(name: str, value: object) -> None:
    """A whole number of at least 1, or a clear refusal."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")


def same_network(one: str, other: str) -> bool:
    """Whether two of timm's names differ in the weights' tag only."""
    return one.split(".")[0] == other.split(".")[0]


def usual_normalisation(backbone: str, in_chans: int) -> dict[str, Any]:
    """The mean and std that a timm model was trained with, where its colours are what comes in."""
    trained = timm.get_pretrained_cfg(backbone) if timm.is_model(backbone) else None
    return {"mean": trained.mean, "std": trained.std} if trained and in_chans == 3 else {}
