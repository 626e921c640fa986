"""Classify huge images by looking only where it matters."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foveate.checkpoints import from_tensorflow, load, save
    from foveate.creation import create_model, list_models
    from foveate.geometry import Grid, Region
    from foveate.models import TNet, WholeImage
    from foveate.readers import open_image
    from foveate.sources import ImageSource, TensorImage
    from foveate.traversal import Level, Prediction, Walk

__version__ = "0.1.0"

__all__ = [
    "Grid",
    "ImageSource",
    "Level",
    "Prediction",
    "Region",
    "TNet",
    "TensorImage",
    "Walk",
    "WholeImage",
    "create_model",
    "from_tensorflow",
    "list_models",
    "load",
    "open_image",
    "save",
]

# Where each public name lives. Imported when it is first used: torch takes seconds, `foveate --help` must not.
_HOMES = {
    "Grid": "geometry",
    "ImageSource": "sources",
    "Level": "traversal",
    "Prediction": "traversal",
    "Region": "geometry",
    "TNet": "models",
    "TensorImage": "sources",
    "Walk": "traversal",
    "WholeImage": "models",
    "create_model": "creation",
    "from_tensorflow": "checkpoints",
    "list_models": "creation",
    "load": "checkpoints",
    "open_image": "readers",
    "save": "checkpoints",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'foveate' has no attribute {name!r}")
    value = getattr(import_module(f"foveate.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
