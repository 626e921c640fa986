"""A training run in a folder: a recipe and data become a trained model, and all that it takes to go on is kept."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from foveate.checkpoints import CONFIG, load_weights, read_config
from foveate.creation import create_model
from foveate.data.catalog import for_evaluation, for_training, has_validation, open_split
from foveate.data.examples import LabelledData
from foveate.data.labelled import LabelledImages, unreadable
from foveate.fitting import STATE, Machine, Outcome, fit
from foveate.models import Model
from foveate.recipes import Recipe, read_recipe, write_recipe
from foveate.training import Learner, TrainingData, Watch
from foveate.weights import WEIGHTS, load_strictly, read_safetensors

RECIPE, RUN = "recipe.toml", "run.json"

Advance = Callable[[int, int], object]
"""Is told how many files have been looked at, and of how many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where a run began: its data and first weights, and the command, for whoever wants to know later."""

    data: str | None
    init: str | None
    command: tuple[str, ...]
    versions: Mapping[str, str]


def train(
    recipe: Recipe,
    data: Path | None,
    folder: Path,
    *,
    init: Path | None = None,
    machine: Machine | None = None,
    watch: Watch | None = None,
    checking: Advance | None = None,
) -> Outcome:
    """Trains what ``recipe`` describes on ``data`` in a new ``folder``, from the weights in ``init`` if given.

    The folder then holds the recipe, the log, the last state and the best model. With ``checking`` all files are
    looked at first, so that those that cannot be read are told at once and not in the middle of the night.
    """
    learner = _learner(recipe, data, init, begun=False)
    if _is_first_process():
        _check_new(folder)
        if checking:
            _check_readable(learner.data, recipe.plan.engine.unread, checking)
        _begin(recipe, data, folder, init)
    return fit(learner, folder, resume=not _is_first_process(), machine=machine, watch=watch)


def resume(folder: Path, *, machine: Machine | None = None, watch: Watch | None = None) -> Outcome:
    """Goes on with the run in ``folder`` exactly where its last state was saved."""
    recipe, origin = read_run(folder)
    data, init = (Path(path) if path else None for path in (origin.data, origin.init))
    learner = _learner(recipe, data, init, begun=(folder / STATE).is_file())
    return fit(learner, folder, resume=True, machine=machine, watch=watch)


def read_run(folder: Path) -> tuple[Recipe, Origin]:
    """The recipe of a run, and where it began."""
    if not (folder / RUN).is_file():
        raise FileNotFoundError(f"a run must be a folder with {RECIPE} and {RUN}, got no {folder / RUN}")
    try:
        origin = Origin(**json.loads((folder / RUN).read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{folder / RUN} must tell where the run began, got {error}") from error
    return read_recipe(folder / RECIPE), origin


def _check_new(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        hint = "; --resume goes on with the run in it" if (folder / RUN).is_file() else ""
        raise FileExistsError(f"output must be a new or an empty folder, got {folder}{hint}")


def _check_readable(data: TrainingData, spare: int, advance: Advance) -> None:
    parts = [part for part in (data.train, data.validation) if isinstance(part, LabelledImages)]
    samples = [sample for part in parts for sample in part.samples]
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        advance(done, len(samples))

    broken = unreadable(samples, advance=step)
    if len(broken) > spare:
        raise ValueError(
            f"at most {spare} images may be unreadable (engine.unread), got {len(broken)} of {len(samples)}: "
            + _listed([f"{path} ({reason})" for path, reason in broken])
        )


def _listed(items: Sequence[str], most: int = 20) -> str:
    more = f"; and {len(items) - most} more" if len(items) > most else ""
    return "; ".join(items[:most]) + more


def _begin(recipe: Recipe, data: Path | None, folder: Path, init: Path | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_recipe(recipe, folder / RECIPE)
    origin = Origin(
        data=str(data.resolve()) if data else None,
        init=str(init.resolve()) if init else None,
        command=tuple(sys.argv),
        versions=_versions(),
    )
    (folder / RUN).write_text(json.dumps(asdict(origin), indent=2) + "\n", encoding="utf-8")


def _versions() -> dict[str, str]:
    packages = ("foveate", "torch", "torchvision", "timm", "lightning", "numpy")
    return {"python": platform.python_version()} | {name: version(name) for name in packages}


def _is_first_process() -> bool:
    """Lightning starts the other processes of a node by running the same command again."""
    return all(os.environ.get(name, "0") == "0" for name in ("LOCAL_RANK", "NODE_RANK", "RANK", "SLURM_PROCID"))


def _learner(recipe: Recipe, where: Path | None, init: Path | None, *, begun: bool) -> Learner:
    data = _training_data(recipe, where)
    torch.manual_seed(recipe.plan.engine.seed)
    # A run that has a state takes all of its weights from there.
    model = _build(recipe, data.train, pretrained=recipe.model.pretrained and not begun and init is None)
    if init is not None and not begun:
        _start_from(model, init)
    return Learner(model, data, recipe.plan)


def _training_data(recipe: Recipe, where: Path | None) -> TrainingData:
    train = open_split(recipe.data, where, "train")
    held = open_split(recipe.data, where, "validation") if has_validation(recipe.data) else None
    return TrainingData(
        train=train,
        prepare=for_training(recipe.data),
        validation=held,
        prepare_validation=for_evaluation(recipe.data),
    )


def _build(recipe: Recipe, data: LabelledData, *, pretrained: bool) -> Model:
    classes = tuple(data.classes)
    return create_model(
        recipe.model.name,
        pretrained=pretrained,
        num_classes=len(classes),
        class_names=classes,
        **_with_channels(recipe),
    )


def _with_channels(recipe: Recipe) -> dict[str, Any]:
    """The model's options; where files are turned to 1 or 3 channels, so is what the model expects."""
    options = dict(recipe.model.options)
    if recipe.data.channels:
        options.setdefault("in_chans", recipe.data.channels)
        if options["in_chans"] != recipe.data.channels:
            raise ValueError(
                f"model.in_chans must be data.channels, got {options['in_chans']} and {recipe.data.channels}"
            )
    return options


def _start_from(model: Model, init: Path) -> None:
    """Takes over weights; of a saved model with other classes all but the classifier's."""
    if not (init / CONFIG).is_file() or read_config(init).class_names == model.config.class_names:
        load_weights(model, init)
        return
    saved = read_safetensors(init / WEIGHTS)
    fresh = {name: value for name, value in model.state_dict().items() if name.startswith("classifier.")}
    load_strictly(model, {name: value for name, value in saved.items() if name not in fresh} | fresh, str(init))
