"""A program that kills a training run again and again, and resumes it: python -m tests.killed_runs FOLDER WHAT ...

Everything is imported once; each attempt is a child of this process, so that it begins at once.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.tensorboard import SummaryWriter  # noqa: F401, so that children need not load it

from foveate import weights
from foveate.checkpoints import load
from foveate.fitting import LOG, MODEL, STATE, fit, read_log
from foveate.state_files import read_state
from foveate.training import Learner, TrainingData
from tests.tiny import tiny_learner, tiny_model, tiny_plan

ROUND = 2  # steps between two saves: a good part of the time is spent saving


def learner(epochs: int) -> Learner:
    plan = tiny_plan(
        schedule={"batch": 4, "accumulate": 2, "epochs": epochs},
        walk={"select": "sample", "location_dropout": 0.5},
        optimizer={"weight_decay": 1e-4},
        engine={"workers": 0, "log_every": 1, "save_every": ROUND},
    )
    return tiny_learner(plan, model=tiny_model(backbone="test_byobnet", dropout=0.2, stochastic_depth=0.2))


def attempt(folder: Path, epochs: int, *, delay: tuple[float, float] | None = None, stage: int | None = None) -> bool:
    """Trains in a child until it is killed, whether it was.

    It is when it comes to a stage; or after a delay: some seconds from the start, or some from its first step.
    """
    steps, told = os.pipe()
    child = os.fork()
    if child == 0:
        subject = learner(epochs)
        if stage is not None:
            die_at(stage)
            subject.data = TrainingData(train=subject.data.train, prepare=subject.data.prepare)  # keeps every model
        fit(subject, folder, resume=folder.is_dir(), watch=lambda _learner, _what: os.write(told, b"."))
        os._exit(0)
    if delay:
        start, first_step = delay
        if first_step:
            os.read(steps, 1)
        time.sleep(start or first_step)
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(steps)
    os.close(told)
    if status not in (0, -signal.SIGKILL):
        raise SystemExit(f"a run must end well or be killed, got {status}")
    return status != 0


def die_at(stage: int) -> None:
    """Kills this process when it is about to change the disk for the ``stage``-th time."""
    count = 0

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == stage:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **options)

        return call

    for owner, names in (
        (weights, ["save_file"]),
        (Path, ["replace", "rename", "write_text", "mkdir"]),
        (os, ["fsync"]),
        (csv.DictWriter, ["writerow"]),
    ):
        for name in names:
            setattr(owner, name, counted(getattr(owner, name)))


def found(folder: Path) -> dict[str, object]:
    """What a killed run left; reading it fails if anything is half."""
    if not folder.is_dir():
        return {"steps": 0, "row": 0, "left": []}
    state = folder / STATE
    if (folder / MODEL).exists():
        load(folder / MODEL)
    rows = read_log(folder / LOG)
    names = sorted(
        path.name for path in [*folder.iterdir(), *(folder / MODEL).glob("*")] if path.name.startswith(".")
    )
    return {
        "steps": read_state(state)["learner"]["batches_done"] // 2 if state.exists() else 0,
        "row": int(rows[-1]["step"]) if rows else 0,
        "left": names,
    }


def at_moments(folder: Path, kills: int, epochs: int) -> list[Any]:
    """Kills at random moments: every fourth time as a run begins, else in what comes after its first step."""
    started = time.monotonic()
    attempt(folder / "whole", epochs)
    whole = time.monotonic() - started
    draw = random.Random(0)
    left: list[Any] = []
    while len(left) < kills:
        seconds = draw.uniform(0, whole / kills)
        if not attempt(folder / "killed", epochs, delay=(seconds, 0) if len(left) % 4 == 3 else (0, seconds)):
            raise SystemExit(f"a run must last for {kills} kills, got {len(left)}: {left}")
        left.append(found(folder / "killed"))
    attempt(folder / "killed", epochs)
    return left


def at_stages(folder: Path, epochs: int) -> list[Any]:
    """Kills each attempt one stage later than the last one."""
    attempt(folder / "whole", epochs, stage=-1)
    left: list[Any] = []
    while attempt(folder / "killed", epochs, stage=len(left) + 1):
        left.append(found(folder / "killed"))
    return left


def with_workers(folder: Path) -> None:
    """Trains with two workers, and tells of them."""
    subject = learner(1000)
    subject.plan = dataclasses.replace(subject.plan, engine=dataclasses.replace(subject.plan.engine, workers=2))

    def watch(_learner: Learner, _what: str) -> None:
        print(json.dumps([child.pid for child in multiprocessing.active_children()]), flush=True)

    fit(subject, folder / "run", watch=watch)


def main(folder: Path, what: str, *numbers: str) -> None:
    torch.set_num_threads(1)  # before the first fork: a child has no other threads than the one that forked
    if what == "workers":
        with_workers(folder)
    else:
        does = {"moments": at_moments, "stages": at_stages}[what]
        print(json.dumps(does(folder, *map(int, numbers))))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
