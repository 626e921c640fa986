"""Models by name."""

from __future__ import annotations

import difflib
import fnmatch
from pathlib import Path
from typing import Any

from foveate.checkpoints import CONFIG, load, load_weights
from foveate.models import PRESETS, Model, build


def list_models(pattern: str = "*") -> list[str]:
    """The names that ``create_model`` knows, by shell pattern: ``list_models("tnet*")``."""
    return sorted(fnmatch.filter(PRESETS, pattern))


def create_model(
    name: str, *, pretrained: bool = False, checkpoint_path: str | Path | None = None, **options: Any
) -> Model:
    """A model by name. ``options`` are fields of its configuration: num_classes, backbone, base, grid, cell, ...

    ``pretrained`` fetches the backbone's weights through timm. ``checkpoint_path`` fills the model from a saved
    model's folder, a TensorFlow checkpoint, or a .safetensors file (whole model, or timm's backbone alone).

    >>> create_model("tnet", backbone="resnet18", base=160, grid=(4, 6), cell=0.3, num_classes=7)
    """
    if name not in PRESETS:
        close = difflib.get_close_matches(name, PRESETS, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(list_models())}"
        raise ValueError(f"model must be a known name, got {name!r}; {hint}")
    try:
        config = PRESETS[name](**options)
    except TypeError as error:
        raise _option_error(name, options, error) from None
    model = build(config, pretrained=pretrained)
    if checkpoint_path is not None:
        load_weights(model, checkpoint_path)
    return model


def open_model(name: str | Path, **options: Any) -> Model:
    """The model in a saved model's folder, or a new one by name; ``options`` are for a new one only."""
    if not (Path(name) / CONFIG).is_file():
        return create_model(str(name), **options)
    if options:
        raise ValueError(f"a saved model must be taken as it is, got {', '.join(options)} for {name}")
    return load(name)


def _option_error(name: str, options: dict[str, Any], error: TypeError) -> Exception:
    known = sorted(type(PRESETS[name]()).__dataclass_fields__)
    unknown = [option for option in options if option not in known]
    if not unknown:
        return error
    return ValueError(f"options of {name} must be among {', '.join(known)}, got {', '.join(unknown)}")
