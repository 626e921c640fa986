"""A run's state as one file: what is written is read, and a write is whole or did not happen."""

from __future__ import annotations

import json
import math
import os
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import save_file

from foveate.state_files import read_state, write_state
from foveate.weights import BadCheckpointError

PLAIN = st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | st.text()
TREES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(), inner, max_size=3)
        | st.dictionaries(st.integers(), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=12,
)


@given(tree=st.dictionaries(st.sampled_from(["$tensor", "$pairs", "$tuple", "a", "b"]), TREES))
def test_trees_come_back_as_they_were(tree: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "tree"
    write_state(tree, path)
    found = read_state(path)
    assert found == tree
    assert repr(found) == repr(tree)  # lists are not tuples, 1 is neither 1.0 nor True


def test_an_optimiser_comes_back_as_it_was(tmp_path: Path) -> None:
    """Integers as keys, tuples, 0-dimensional tensors, and tensors that share their storage."""
    weight = torch.nn.Parameter(torch.arange(6.0).view(2, 3))
    adam = torch.optim.Adam([weight], betas=(0.8, 0.9))
    weight.grad = torch.ones(2, 3)
    adam.step()
    shared = torch.arange(4.0)
    tree = {"optimizer": adam.state_dict(), "views": [shared, shared[:2], shared.view(2, 2).T], "nan": math.nan}
    write_state(tree, tmp_path / "state")
    found = read_state(tmp_path / "state")
    assert found["optimizer"]["param_groups"] == adam.state_dict()["param_groups"]
    for name, value in adam.state_dict()["state"][0].items():
        assert torch.equal(found["optimizer"]["state"][0][name], value)
        assert found["optimizer"]["state"][0][name].dtype == value.dtype
    for view, original in zip(found["views"], tree["views"], strict=True):  # type: ignore[call-overload]
        assert torch.equal(view, original)
    assert math.isnan(found["nan"])
    assert read_state(tmp_path / "state")["optimizer"].keys() == adam.state_dict().keys()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool])
def test_types_of_tensors_are_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    write_state({"x": torch.tensor([0, 1, 1]).to(dtype)}, tmp_path / "state")
    found = read_state(tmp_path / "state")["x"]
    assert found.dtype == dtype
    assert torch.equal(found, torch.tensor([0, 1, 1]).to(dtype))


def test_ordered_mappings_are_mappings(tmp_path: Path) -> None:
    write_state(OrderedDict(b=1, a=2), tmp_path / "state")
    assert list(read_state(tmp_path / "state").items()) == [("b", 1), ("a", 2)]


@pytest.mark.parametrize("value", [object(), {1, 2}, print, b"bytes"])
def test_nothing_is_pickled(value: object, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="state of a run must be tensors and plain values, got"):
        write_state({"x": [value]}, tmp_path / "state")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_state_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"state of a run must be in .*state, got no such file"):
        read_state(tmp_path / "state")


def test_half_a_file_is_refused(tmp_path: Path) -> None:
    write_state({"x": torch.ones(100)}, tmp_path / "state")
    (tmp_path / "state").write_bytes((tmp_path / "state").read_bytes()[:-10])
    with pytest.raises(BadCheckpointError, match=r"state must be a safetensors file, got"):
        read_state(tmp_path / "state")


def test_tensors_alone_are_no_state(tmp_path: Path) -> None:
    save_file({"x": torch.ones(1)}, tmp_path / "state")
    with pytest.raises(BadCheckpointError, match="must hold the state of a run, got tensors alone"):
        read_state(tmp_path / "state")


@pytest.mark.parametrize("tree", ["{", json.dumps({"x": {"$tensor": "7"}}), json.dumps([1])])
def test_another_tree_is_no_state(tree: str, tmp_path: Path) -> None:
    save_file({"0": torch.ones(1)}, tmp_path / "state", metadata={"tree": tree})
    with pytest.raises(BadCheckpointError, match="must hold the state of a run, got "):
        read_state(tmp_path / "state")


# --- a write that fails, and one that is killed -------------------------------------------------------------

# Everything that a write does to the disk, in its order.
STAGES = ("save_file", "os.fsync", "Path.replace")


def at_stage(stage: str, before: bool, stop: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    """Stops a write when it comes to a stage, or when that is done."""
    owner, name = {
        "save_file": (sys.modules["foveate.weights"], "save_file"),
        "os.fsync": (os, "fsync"),
        "Path.replace": (Path, "replace"),
    }[stage]
    original = getattr(owner, name)

    def interrupted(*args: Any, **options: Any) -> Any:
        if before:
            stop()
        result = original(*args, **options)
        stop()
        return result

    patch.setattr(owner, name, interrupted)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("stage", STAGES)
def test_a_write_that_is_killed_leaves_the_old_state_or_the_new_one(
    stage: str, before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    write_state({"x": torch.zeros(10), "step": 1}, path)
    child = os.fork()
    if child == 0:  # what finally does is not done when a process is killed
        at_stage(stage, before, lambda: os._exit(9), monkeypatch)
        write_state({"x": torch.ones(10), "step": 2}, path)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    found = read_state(path)
    renamed = stage == "Path.replace" and not before
    assert found["step"] == 1 + renamed
    assert torch.equal(found["x"], torch.full((10,), float(renamed)))
    write_state({"x": torch.ones(10), "step": 3}, path)
    assert read_state(path)["step"] == 3
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SafetensorError("I/O error")])
@pytest.mark.parametrize("stage", STAGES)
def test_a_write_that_fails_leaves_the_old_state(
    stage: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    write_state({"step": 1}, path)

    def fail() -> None:
        raise error

    at_stage(stage, True, fail, monkeypatch)
    with pytest.raises(type(error)):
        write_state({"step": 2}, path)
    assert read_state(path)["step"] == 1
    assert list(tmp_path.iterdir()) == [path]
