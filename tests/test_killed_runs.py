"""kill -9 at any moment, then --resume: the same weights and the same log as if nothing had happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from foveate.fitting import MODEL
from tests.killed_runs import ROUND
from tests.tiny import rows_of, state_of

ROOT = Path(__file__).parents[1]


def killed(folder: Path, *what: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.killed_runs", str(folder), *what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def assert_nothing_happened(folder: Path) -> None:
    """The killed run is the whole one, bit by bit, and has left nothing else."""
    whole, resumed = folder / "whole", folder / "killed"
    assert (resumed / MODEL / "model.safetensors").read_bytes() == (whole / MODEL / "model.safetensors").read_bytes()
    assert state_of(resumed) == state_of(whole)
    assert rows_of(resumed) == rows_of(whole)
    for run in (whole, resumed):
        assert not list(run.glob(".*"))
        assert not list((run / MODEL).glob(".*"))


def test_ten_kills_at_random_moments_change_nothing(tmp_path: Path) -> None:
    left = killed(tmp_path, "moments", "10", "25")
    assert len(left) == 10
    steps = [state["steps"] for state in left]
    assert steps == sorted(steps)
    assert all(step % ROUND == 0 for step in steps)
    assert len(set(steps)) >= 4  # some kills came to a run that had got further
    assert 0 < steps[-1] < 25 * 4
    assert_nothing_happened(tmp_path)


def test_a_kill_at_every_stage_of_saving_changes_nothing(tmp_path: Path) -> None:
    left = killed(tmp_path, "stages", "8")
    assert len(left) >= 24
    assert [state["steps"] for state in left] == sorted(state["steps"] for state in left)
    # Some were killed while they wrote the log, the first model, a later model, and the state.
    halves = {name.split("-")[0] for state in left for name in state["left"]}
    assert halves == {".metrics.csv", ".model", ".saving", ".last.state.safetensors"}
    assert_nothing_happened(tmp_path)


def test_workers_do_not_outlive_a_killed_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.killed_runs", str(tmp_path), "workers"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        assert run.stdout
        workers = json.loads(run.stdout.readline())
        assert len(workers) == 2
        assert all(Path(f"/proc/{pid}").exists() for pid in workers)
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
    deadline = time.monotonic() + 30
    while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not any(alive(pid) for pid in workers)


def alive(pid: int) -> bool:
    """Whether a process is there, and is more than its exit code."""
    status = Path(f"/proc/{pid}/status")
    try:
        return "\nState:\tZ" not in status.read_text()
    except OSError:
        return False
