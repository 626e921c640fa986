"""What hard attention is for, shown in minutes: three models learn to find and name a garment in large scenes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from foveate import runs
from foveate.checkpoints import load
from foveate.data.catalog import for_evaluation, open_split
from foveate.data.examples import LabelledData
from foveate.evaluation import Contender, Score, evaluate
from foveate.explanation import overlay
from foveate.models import TNet
from foveate.recipes import Recipe, read_recipe
from foveate.sources import as_source
from foveate.training import Watch

RECIPES = {
    "TNet": "garments-tnet",
    "whole scene, 64 px": "garments-low",
    "whole scene, 512 px": "garments-full",
}
MOST_LOCATIONS = 5
TEST_SCENES = 400
SHOWN = 4

Advance = Callable[[int, int], object]
"""Is told how many of how many scenes have been looked at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Demonstration:
    """How the three did after ``minutes`` of training each, and where some walks are drawn."""

    minutes: float
    scores: tuple[Score, ...]
    pictures: tuple[Path, ...]
    models: tuple[Path, ...]


def demonstrate(
    folder: Path,
    *,
    minutes: float | None = None,
    seed: int = 0,
    garments: Path | None = None,
    watching: Callable[[str], Watch] = lambda _name: lambda _learner, _doing: None,
    advance: Advance = lambda _done, _total: None,
) -> Demonstration:
    """Trains TNet and its backbone on whole scenes, each for ``minutes``, and compares them on scenes never seen.

    ``garments`` is a folder with all of Fashion-MNIST; the package brings a part of it.
    """
    changes = [f"engine.seed={seed}", f"data.seed={seed}"]
    changes += [f"schedule.minutes={minutes}"] if minutes is not None else []
    recipes = {name: read_recipe(recipe, changes) for name, recipe in RECIPES.items()}
    models = []
    for name, recipe in recipes.items():
        run = folder / recipe.name
        if (run / runs.RUN).is_file():  # of an earlier demo
            shutil.rmtree(run)
        models.append(runs.train(recipe, garments, run, watch=watching(name)).model)
    contenders = [
        contender
        for (name, recipe), model in zip(recipes.items(), models, strict=True)
        for contender in _contenders(name, recipe, model)
    ]
    recipe = recipes["TNet"]
    scenes = open_split(recipe.data, garments, "test", count=TEST_SCENES)
    return Demonstration(
        minutes=recipe.plan.schedule.minutes or 0.0,
        scores=tuple(evaluate(contenders, scenes, advance=advance)),
        pictures=tuple(_draw(contenders[MOST_LOCATIONS], scenes, folder)),
        models=tuple(models),
    )


def _contenders(name: str, recipe: Recipe, saved: Path) -> Iterator[Contender]:
    """The model in ``saved``, a TNet at 0 and more locations."""
    model, prepare = load(saved), for_evaluation(recipe.data)
    dial = range(MOST_LOCATIONS + 1) if isinstance(model, TNet) else (0,)
    for count in dial:
        yield Contender(name=name, model=model, prepare=prepare, locations=(count,) if count else ())


def _draw(contender: Contender, scenes: LabelledData, folder: Path) -> Iterator[Path]:
    """Some scenes with what was looked at, each named by what it shows and what it was taken for."""
    for index in range(SHOWN):
        scene = scenes[index]
        source = as_source(contender.prepare(scene, torch.Generator()))
        with torch.inference_mode():
            prediction = contender.model([source], locations=contender.locations)
        taken = scenes.classes[int(prediction.logits.argmax())]
        path = folder / f"walk-{index + 1}-{scenes.classes[scene.label]}-taken-for-{taken}.png".replace(" ", "-")
        overlay(source, prediction.walk).save(path)
        yield path
