"""Weights into modules, strictly: every tensor that is missing, unexpected or of another shape is named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from huggingface_hub import PyTorchModelHubMixin, hf_hub_download
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

WEIGHTS = "model.safetensors"


class BadCheckpointError(ValueError):
    """A checkpoint that cannot be read or does not fit, and why."""


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file."""
    if not path.is_file():
        raise FileNotFoundError(f"weights must be in {path}, got no such file")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise BadCheckpointError(f"{path} must be a safetensors file, got {error}") from error


def write_safetensors(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str]) -> None:
    """Writes all tensors to a file that may be read by whom the folder lets: the library means the owner alone."""
    path.touch()
    mode = path.stat().st_mode
    save_file(dict(tensors), path, metadata=dict(metadata))
    path.chmod(mode)


def load_strictly(module: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Fills a module; refuses tensors that do not fit it exactly."""
    problems = differences(
        {name: tuple(value.shape) for name, value in module.state_dict().items()},
        {name: tuple(value.shape) for name, value in tensors.items()},
    )
    if problems:
        raise BadCheckpointError(f"{where} must fit the model, got {problems}")
    module.load_state_dict(tensors)


def differences(wanted: Mapping[str, tuple[int, ...]], got: Mapping[str, tuple[int, ...]]) -> str:
    """Every tensor that is missing, unexpected or of another shape, in words; empty when there is none."""
    bent = [f"{n} {got[n]} instead of {wanted[n]}" for n in wanted if n in got and got[n] != wanted[n]]
    parts = {
        "missing": [name for name in wanted if name not in got],
        "unexpected": [name for name in got if name not in wanted],
        "mis-shaped": bent,
    }
    return "; ".join(f"{len(names)} {kind}: {', '.join(names)}" for kind, names in parts.items() if names)


class HubModel(PyTorchModelHubMixin):
    """The hub's mixin, but strict about weights, silent, and never falling back to a pickle."""

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        map_location: str = "cpu",
        strict: bool = True,
        **model_kwargs: Any,
    ) -> Self:
        if not strict:
            raise ValueError("strict must be True: a model with some of its weights at random is no model, got False")
        path = Path(model_id) / WEIGHTS
        if not Path(model_id).is_dir():
            found = hf_hub_download(
                model_id,
                WEIGHTS,
                revision=revision,
                cache_dir=cache_dir,
                force_download=force_download,
                local_files_only=local_files_only,
                token=token,
            )
            path = Path(found)
        model = cls(**model_kwargs)
        assert isinstance(model, nn.Module)
        load_strictly(model, read_safetensors(path), model_id)
        model.to(map_location).eval()
        return model
