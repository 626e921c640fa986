"""A program that trains in two processes: python tests/two_processes.py FOLDER.

Lightning starts the second process by running this file again. Each writes down what it came to.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from foveate.fitting import Machine, fit
from foveate.processes import TrainingError
from foveate.training import Learner
from tests.tiny import Corners, tiny_learner, tiny_plan

TWO = Machine(accelerator="cpu", devices=2, strategy="ddp")


def learner(**changes: Any) -> Learner:
    """What one process is to do as well: norms do not learn, and nothing is dropped."""
    engine = {"workers": 0, "log_every": 1, "save_every": 3, "norms": "frozen"} | changes.pop("engine", {})
    plan = tiny_plan(
        schedule={"batch": 8, "epochs": 4, "accumulate": 2} | changes.pop("schedule", {}),
        walk=changes.pop("walk", {}),
        teaching=changes.pop("teaching", {}),
        optimizer={"lr": 1e-4, "weight_decay": 1e-4},
        engine=engine,
    )
    return tiny_learner(plan, **changes)


def digest(model: torch.nn.Module) -> str:
    found = hashlib.sha256()
    for value in model.state_dict().values():
        found.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def trained(subject: Learner, folder: Path, **options: Any) -> dict[str, Any]:
    """What came of a run in this process."""
    try:
        fit(subject, folder, machine=TWO, **options)
        error = ""
    except TrainingError as trouble:
        error = str(trouble)
    return {
        "error": error,
        "steps": subject.steps_done,
        "seconds": subject.seconds,
        "unread": sorted(subject.unread),
        "weights": digest(subject.model),
    }


def doing(subject: Learner, rank: int, step: int, act: Callable[[Learner], None]) -> Learner:
    """Acts at the end of a step, in one process."""
    end = subject.on_train_batch_end

    def hook(*args: Any) -> None:
        end(*args)
        if subject.steps_done == step and os.environ.get("LOCAL_RANK", "0") == str(rank):
            act(subject)

    subject.on_train_batch_end = hook  # type: ignore[method-assign]
    return subject


def spoil(subject: Learner) -> None:
    subject.model.classifier[1].bias.data[0] = math.inf


def fill(_subject: Learner) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    found = {
        "whole": trained(learner(), folder / "whole"),
        "fewer": trained(learner(walk={"location_dropout": 0.5}), folder / "fewer"),
        "warm": trained(learner(teaching={"warm_start": 16}), folder / "warm"),
        "spoilt": trained(doing(learner(), 1, 5, spoil), folder / "resumed"),
        "resumed": trained(learner(), folder / "resumed", resume=True),
        "broken": trained(learner(train=Corners(16, broken={3})), folder / "broken"),
        "unread": trained(
            learner(
                train=Corners(16, broken={3, 8}), validation=Corners(5, broken={1}, seed=1), engine={"unread": 3}
            ),
            folder / "unread",
        ),
        "minutes": trained(learner(schedule={"minutes": 0.01, "epochs": None}), folder / "minutes"),
        "stopped": trained(learner(engine={"patience": 1, "monitor": "accuracy"}), folder / "stopped"),
        "full": trained(doing(learner(), 0, 5, fill), folder / "full"),
    }
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    rank = os.environ["LOCAL_RANK"]
    (folder / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
