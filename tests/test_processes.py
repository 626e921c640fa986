"""Two processes with half of each batch do what one does with the whole; and all of them go on, or none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from foveate.fitting import STATE, fit
from foveate.processes import TrainingError, means_of_all, raise_together, texts_of_all
from foveate.state_files import read_state
from tests import two_processes
from tests.tiny import losses_of, rows_of

Found = list[dict[str, dict[str, Any]]]
ALONE: Any = SimpleNamespace(world_size=1)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of several processes on few cores wait for each other far longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes left: each started as the command line starts them, by Lightning from one."""
    folder = tmp_path_factory.mktemp("two")
    command = [sys.executable, two_processes.__file__, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    # What torch says of steps that open no cells comes from its C++ part, which cannot be silenced from here.
    assert [line for line in done.stderr.splitlines() if "find_unused_parameters" not in line] == []
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    """What each process came to, run by run."""
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.gradients
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("whole", {}),
        ("fewer", {"walk": {"location_dropout": 0.5}}),
        ("warm", {"teaching": {"warm_start": 16}}),
    ],
)
def test_two_processes_with_half_a_batch_do_what_one_does(
    name: str, changes: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    alone = two_processes.learner(**changes)
    fit(alone, tmp_path)
    here, there = rows_of(tmp_path), rows_of(folder / name)
    assert len(here) == 12  # eight steps, four validations
    for mine, theirs in zip(here, there, strict=True):
        assert {k: float(v) for k, v in theirs.items() if v} == pytest.approx(
            {k: float(v) for k, v in mine.items() if v}, rel=1e-4, abs=1e-6
        )
    assert losses_of(folder / name) == pytest.approx(losses_of(tmp_path), rel=1e-5)
    assert losses_of(folder / name, "baseline") == pytest.approx(losses_of(tmp_path, "baseline"), rel=1e-6)
    ends = [read_state(run / STATE)["state_dict"] for run in (tmp_path, folder / name)]
    start = two_processes.learner().state_dict()
    for key, value in ends[0].items():
        torch.testing.assert_close(ends[1][key], value, atol=5e-5, rtol=1e-3)
    # That is little, compared with how far the weights have come.
    assert max(float((ends[0][key] - value).abs().max()) for key, value in start.items()) > 4e-4


@pytest.mark.parametrize("name", ["whole", "fewer", "warm", "resumed", "unread", "minutes", "stopped"])
def test_both_processes_come_to_the_same(name: str, found: Found) -> None:
    """Weights with the baseline, steps, the clock by which rates fall, and what could not be read."""
    assert found[0][name] == found[1][name]
    assert found[0][name]["error"] == ""


def test_two_processes_are_resumed_exactly(folder: Path, found: Found) -> None:
    assert found[0]["spoilt"]["steps"] == 5
    assert found[0]["resumed"]["steps"] == 8
    assert found[0]["resumed"]["weights"] == found[0]["whole"]["weights"]
    assert rows_of(folder / "resumed") == rows_of(folder / "whole")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("spoilt", "loss must be finite, got cross_entropy nan"),
        ("broken", "at most 0 images may be unreadable (engine.unread), got 1: image-3.png must be a whole image"),
        ("full", "last.state.safetensors must be written, got "),
    ],
)
def test_what_goes_wrong_in_one_process_ends_both(name: str, message: str, found: Found) -> None:
    for process in found:
        assert message in process[name]["error"]
    assert found[0][name]["error"] == found[1][name]["error"]


def test_images_that_one_process_could_not_read_are_known_to_both(found: Found) -> None:
    assert found[0]["unread"]["unread"] == ["train/3", "train/8", "validation/1"]


def test_minutes_and_patience_end_both_processes_at_once(found: Found) -> None:
    assert 0 < found[0]["minutes"]["seconds"] > 0.6
    assert found[0]["stopped"]["steps"] < 8


# --- one process -----------------------------------------------------------------------------------------


def test_one_process_speaks_to_itself() -> None:
    assert texts_of_all(ALONE, "word") == ["word"]
    assert means_of_all(ALONE, [1.0, 3.0]) == [1.0, 3.0]
    raise_together(ALONE, "")
    with pytest.raises(TrainingError, match=r"^trouble$"):
        raise_together(ALONE, "trouble")
