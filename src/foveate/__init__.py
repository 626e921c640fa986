"""Classify huge images by looking only where it matters."""

from foveate.checkpoints import from_tensorflow, load, save
from foveate.creation import create_model, list_models
from foveate.geometry import Grid, Region
from foveate.models import TNet, WholeImage
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
    "save",
]
