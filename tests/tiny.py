"""A data set, a model and a plan so small that a whole training run takes a second."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foveate.data.examples import Example
from foveate.data.transforms import Flipped, Resized
from foveate.fitting import LOG, STATE, read_log
from foveate.models import Model, TNetConfig, WholeImageConfig, build
from foveate.objectives import LearningRule
from foveate.optimisation import OptimizerOptions, ScheduleOptions
from foveate.plan import EngineOptions, Plan, WalkOptions
from foveate.state_files import read_state
from foveate.teaching import TeachingOptions
from foveate.training import Learner, TrainingData

SECTIONS: dict[str, Callable[..., Any]] = {
    "optimizer": OptimizerOptions,
    "schedule": ScheduleOptions,
    "objective": LearningRule,
    "walk": WalkOptions,
    "teaching": TeachingOptions,
    "engine": EngineOptions,
}


class Corners:
    """Noise with a bright square in one corner, which is the label; ``broken`` ones cannot be read."""

    classes = ("top left", "top right", "bottom left", "bottom right")

    def __init__(self, count: int, *, broken: Collection[int] = (), seed: int = 0) -> None:
        self.count, self.broken, self.seed = count, frozenset(broken), seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Example:
        if index in self.broken:
            raise ValueError(f"image-{index}.png must be a whole image, got a damaged one")
        noise = torch.Generator().manual_seed(1000 * self.seed + index)
        image = torch.randint(0, 120, (3, 48, 48), generator=noise, dtype=torch.uint8)
        label = int(torch.randint(4, (), generator=noise))
        top, left = 28 * (label // 2), 28 * (label % 2)
        image[:, top : top + 16, left : left + 16] += 120
        return Example(image, label, torch.tensor([[left, top, 16, 16]]), f"image-{index}.png")


def tiny_model(*, seed: int = 0, **options: Any) -> Model:
    """A TNet with 2 x 2 cells, or the whole image."""
    torch.manual_seed(seed)
    common = {"name": "tiny", "num_classes": 4, "backbone": "test_efficientnet"}
    if options.pop("whole_image", False):
        return build(WholeImageConfig(**common | options))
    walk = {"base": 32, "grid": (2, 2), "cell": (0.5, 0.5), "locations": (2,)}
    return build(TNetConfig(**common | walk | options))


def tiny_plan(**sections: dict[str, Any]) -> Plan:
    """Two epochs of four steps; sections are those of ``Plan``, their values replace these."""
    usual: dict[str, dict[str, Any]] = {
        "schedule": {"batch": 4} | ({} if "minutes" in sections.get("schedule", {}) else {"epochs": 2}),
        "engine": {"workers": 0, "log_every": 1, "save_every": 3},
    }
    names = usual.keys() | sections.keys()
    return Plan(**{name: SECTIONS[name](**usual.get(name, {}) | sections.get(name, {})) for name in names})


def tiny_learner(
    plan: Plan | None = None,
    *,
    model: Model | None = None,
    train: Corners | None = None,
    validation: Corners | None = None,
) -> Learner:
    """A learner of 16 images, with 6 for validation."""
    data = TrainingData(
        train=train or Corners(16),
        prepare=Flipped((48, 48)),
        validation=validation or Corners(6, seed=1),
        prepare_validation=Resized((48, 48)),
    )
    return Learner(model or tiny_model(), data, plan or tiny_plan())


def rows_of(folder: Path) -> list[dict[str, str]]:
    """What a run wrote to its log, but for the time that it took."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in read_log(folder / LOG)]


def losses_of(folder: Path, name: str = "loss") -> list[float]:
    """One column of the log."""
    return [float(row[name]) for row in rows_of(folder) if row[name]]


def state_of(folder: Path) -> dict[str, Any]:
    """A run's last state, but for the time that it took; tensors as lists of bytes, to be compared exactly."""
    state = read_state(folder / STATE)
    del state["learner"]["seconds"]
    plain: dict[str, Any] = _plain(state)
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
