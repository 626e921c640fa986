"""A recipe and a folder of images become a run, as `foveate train` does it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import foveate
from foveate import runs
from foveate.checkpoints import load
from foveate.data.labelled import class_folders
from foveate.fitting import LOG, MODEL, STATE
from foveate.recipes import Recipe, read_recipe
from foveate.training import Learner
from foveate.weights import BadCheckpointError
from tests.data.pictures import paint
from tests.tiny import rows_of, state_of

pytestmark = pytest.mark.gradients

TOML = """
[model]
name = "tnet"
backbone = "test_efficientnet"
base = 32
grid = 2
cell = 0.5
locations = [2]

[data]
size = 48
augmentation = "flips"
validation = 0.25

[schedule]
epochs = 2
batch = 4

[engine]
workers = 0
log_every = 1
"""
COLOURS = {"blue": (10, 20, 200), "red": (200, 20, 10)}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder for each of two colours."""
    for name, colour in COLOURS.items():
        for number in range(12):
            paint(tmp_path / "photos" / name / f"{number}.png", colour, (60, 40))
    return tmp_path / "photos"


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    (tmp_path / "own.toml").write_text(TOML)
    return read_recipe(tmp_path / "own.toml")


def changed(tmp_path: Path, *overrides: str) -> Recipe:
    (tmp_path / "own.toml").write_text(TOML)
    return read_recipe(tmp_path / "own.toml", overrides)


def test_a_run_has_all_that_is_to_be_known(photos: Path, recipe: Recipe, tmp_path: Path) -> None:
    looked: list[tuple[int, int]] = []
    outcome = runs.train(recipe, photos, tmp_path / "run", checking=lambda *counts: looked.append(counts))
    assert outcome.model == tmp_path / "run" / MODEL
    assert looked[-1] == (len(looked), len(looked))
    model = load(outcome.model)
    assert model.config.class_names == ("blue", "red")
    read, origin = runs.read_run(tmp_path / "run")
    assert read == recipe
    assert (origin.data, origin.init) == (str(photos), None)
    assert {"python", "foveate", "torch", "timm"} <= origin.versions.keys()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == sorted(
        ["recipe.toml", "run.json", LOG, STATE, MODEL, "tensorboard"]
    )
    assert rows_of(tmp_path / "run")


def test_a_run_from_a_manifest_is_the_one_from_folders(photos: Path, tmp_path: Path) -> None:
    recipe = changed(tmp_path, "data.validation=0")
    with (tmp_path / "list.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "label"))
        writer.writerows((f"photos/{name}/{number}.png", name) for name in COLOURS for number in range(12))
    models = []
    for where, folder in ((tmp_path / "list.csv", "one"), (photos, "two")):
        models.append(load(runs.train(recipe, where, tmp_path / folder).model))
    assert models[0].config == models[1].config


class Killed(Exception):  # noqa: N818, it stands for a power cut
    """Ends a run in the middle."""


def test_a_killed_run_goes_on_from_its_folder_alone(photos: Path, tmp_path: Path) -> None:
    recipe = changed(tmp_path, "engine.save_every=2")

    def kill(learner: Learner, _what: str) -> None:
        if learner.steps_done == 5:
            raise Killed

    runs.train(recipe, photos, tmp_path / "whole")
    with pytest.raises(Killed):
        runs.train(recipe, photos, tmp_path / "killed", watch=kill)
    (tmp_path / "own.toml").unlink()
    runs.resume(tmp_path / "killed")
    assert state_of(tmp_path / "killed") == state_of(tmp_path / "whole")
    assert rows_of(tmp_path / "killed") == rows_of(tmp_path / "whole")


def test_first_weights_are_a_models_or_a_backbones(photos: Path, tmp_path: Path) -> None:
    """At a rate of almost nothing the first weights are the last ones."""
    still = ["optimizer.lr=1e-30", "engine.norms=frozen", "schedule.epochs=1"]
    other = foveate.create_model(
        "tnet", backbone="test_efficientnet", base=32, grid=2, cell=0.5, num_classes=5, locations=(2,)
    )
    foveate.save(other, tmp_path / "other")
    wanted = other.state_dict()
    first = load(runs.train(changed(tmp_path, *still), photos, tmp_path / "a", init=tmp_path / "other").model)
    for name, value in first.state_dict().items():
        if not name.startswith("classifier.") and name != "reward_baseline":
            torch.testing.assert_close(value, wanted[name])
    assert first.config.num_classes == 2
    again = load(runs.train(changed(tmp_path, *still), photos, tmp_path / "b", init=tmp_path / "a" / MODEL).model)
    for name, value in again.state_dict().items():  # the same classes: the classifier is taken over, too
        if name != "reward_baseline":
            torch.testing.assert_close(value, first.state_dict()[name])
    (tmp_path / "weights.safetensors").write_bytes(b"nothing")
    with pytest.raises(BadCheckpointError, match="must be a safetensors file"):
        runs.train(changed(tmp_path), photos, tmp_path / "c", init=tmp_path / "weights.safetensors")


def test_a_model_with_other_parts_is_no_start(photos: Path, recipe: Recipe, tmp_path: Path) -> None:
    other = foveate.create_model("whole_image", backbone="test_efficientnet", num_classes=5)
    foveate.save(other, tmp_path / "other")
    with pytest.raises(BadCheckpointError, match=r"missing: .*locate"):
        runs.train(recipe, photos, tmp_path / "run", init=tmp_path / "other")
    assert not (tmp_path / "run").exists()


def test_broken_files_are_told_before_anything_is_written(photos: Path, recipe: Recipe, tmp_path: Path) -> None:
    data = class_folders(photos, "train", validation=0.25), class_folders(photos, "validation", validation=0.25)
    broken = [part.samples[-1].path for part in data]
    broken[0].write_bytes(broken[0].read_bytes()[:60])
    broken[1].write_text("no picture")
    with pytest.raises(ValueError, match=r"at most 0 images may be unreadable .* got 2 of ") as e:
        runs.train(recipe, photos, tmp_path / "run", checking=lambda _done, _total: None)
    assert all(str(path) in str(e.value) for path in broken)
    assert "\n" not in str(e.value)
    assert not (tmp_path / "run").exists()
    allowed = changed(tmp_path, "engine.unread=2")
    outcome = runs.train(allowed, photos, tmp_path / "run", checking=lambda _done, _total: None)
    assert outcome.model.is_dir()


def test_a_folder_that_is_in_use_is_left_alone(photos: Path, recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match=r"output must be a new or an empty folder, got .*run$"):
        runs.train(recipe, photos, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]
    runs.train(recipe, photos, tmp_path / "other")
    with pytest.raises(FileExistsError, match="--resume goes on with the run in it"):
        runs.train(recipe, photos, tmp_path / "other")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.channels=1", "model.in_chans=3"], r"model\.in_chans must be data\.channels, got 3 and 1"),
        (["schedule.batch=64"], "batch must be at most the number of training images, got 64 and"),
        (["walk.locations=[9]"], "from 0 to the grid's 4 cells"),
        (["data.kind=cub"], "must"),
    ],
)
def test_what_does_not_go_together_is_told(overrides: list[str], message: str, photos: Path, tmp_path: Path) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        runs.train(changed(tmp_path, *overrides), photos, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_channels_of_files_are_those_of_the_model(photos: Path, tmp_path: Path) -> None:
    outcome = runs.train(changed(tmp_path, "data.channels=1", "schedule.epochs=1"), photos, tmp_path / "run")
    assert load(outcome.model).config.in_chans == 1


@pytest.mark.parametrize("content", ["", "[]", '{"data": null}'])
def test_a_damaged_run_is_told(content: str, photos: Path, recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"a run must be a folder with recipe\.toml and run\.json"):
        runs.resume(tmp_path / "nowhere")
    runs.train(recipe, photos, tmp_path / "run")
    (tmp_path / "run" / runs.RUN).write_text(content)
    with pytest.raises(ValueError, match="must tell where the run began"):
        runs.resume(tmp_path / "run")


def test_the_run_tells_its_command(
    photos: Path, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["foveate", "train", "--data", "photos"])
    runs.train(recipe, photos, tmp_path / "run")
    told: dict[str, Any] = json.loads((tmp_path / "run" / runs.RUN).read_text())
    assert told["command"] == ["foveate", "train", "--data", "photos"]
