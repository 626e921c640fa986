"""The models by name, and how one is built from its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from foveate.models import bagnet, tnet, whole_image
from foveate.models.tnet import TNet, TNetConfig
from foveate.models.whole_image import WholeImage, WholeImageConfig

__all__ = [
    "CONFIGS",
    "GENERIC",
    "PRESETS",
    "Config",
    "Model",
    "TNet",
    "TNetConfig",
    "WholeImage",
    "WholeImageConfig",
    "bagnet",
    "build",
    "config_from",
]

Model = TNet | WholeImage
Config = TNetConfig | WholeImageConfig

PRESETS: dict[str, Callable[..., Config]] = {**tnet.PRESETS, **whole_image.PRESETS}
# Those that were never published: any backbone, any geometry.
GENERIC = ("tnet", "whole_image")
CONFIGS: dict[str, type[TNetConfig] | type[WholeImageConfig]] = {
    "tnet": TNetConfig,
    "whole_image": WholeImageConfig,
}


def build(config: Config, *, pretrained: bool = False) -> Model:
    """The model that a configuration describes; ``pretrained`` fetches its backbone's weights through timm."""
    if isinstance(config, TNetConfig):
        return TNet(config, pretrained=pretrained)
    return WholeImage(config, pretrained=pretrained)


def config_from(values: Mapping[str, Any]) -> Config:
    """The configuration that a ``config.json`` holds."""
    architecture = values.get("architecture")
    if architecture not in CONFIGS:
        raise ValueError(f"architecture must be one of {', '.join(CONFIGS)}, got {architecture!r}")
    kind = CONFIGS[architecture]
    unknown = sorted(set(values) - set(kind.__dataclass_fields__))
    if unknown:
        raise ValueError(f"config.json must hold a {kind.__name__}'s values, got also {', '.join(unknown)}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"config.json must hold a {kind.__name__}'s values, got {error}") from error
