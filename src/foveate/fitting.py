"""Runs a learner in a folder: its log, its states, the best model; and goes on where a killed run stopped."""

from __future__ import annotations

import csv
import io
import logging
import math
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.plugins import CheckpointIO
from lightning.pytorch.utilities import rank_zero_only
from safetensors import SafetensorError

from foveate.checkpoints import save
from foveate.models import TNet
from foveate.processes import raise_together
from foveate.state_files import read_state, write_state
from foveate.training import Learner, Watch

STATE = "last.state.safetensors"
MODEL = "model"
LOG = "metrics.csv"

# In Lightning's words.
PRECISIONS: dict[str, Literal["32-true", "bf16-mixed", "16-mixed"]] = {
    "32": "32-true",
    "bf16": "bf16-mixed",
    "16": "16-mixed",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """On what to train: Lightning's own names. ``devices`` is how many processes each of ``num_nodes`` has."""

    accelerator: str = "auto"
    devices: int = 1
    num_nodes: int = 1
    strategy: str = "auto"

    def __post_init__(self) -> None:
        for name in ("devices", "num_nodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What came of a run: the folder of its best model, and how that did in validation (None without a split)."""

    model: Path
    steps: int
    seconds: float
    best: float | None


def fit(
    learner: Learner,
    folder: Path,
    *,
    resume: bool = False,
    machine: Machine | None = None,
    watch: Watch | None = None,
) -> Outcome:
    """Trains ``learner`` to the end of its plan; ``resume`` continues exactly from the last state in ``folder``.

    A run that was killed before its first state begins anew. All processes must see ``folder``; only the first writes
    there and calls ``watch``.
    """
    machine = machine or Machine()
    _check_shares(learner, machine)
    state = folder / STATE
    steps = _steps_of(state) if state.is_file() else 0
    if steps and not resume:
        raise ValueError(f"{folder} must not hold another run unless that is resumed, got {STATE}")
    if resume and not folder.is_dir():
        raise FileNotFoundError(f"a run that is to be resumed must be in {folder}, got no such folder")
    _tidy(folder)
    if watch:
        learner.watch = rank_zero_only(watch)
    if machine.devices * machine.num_nodes == 1:
        # The same numbers in another order in memory, in which convolutions are faster. DDP has another order.
        learner.model.to(memory_format=torch.channels_last)
    keeper = Keeper(folder)
    with warnings.catch_warnings():
        _silence_lightning()
        trainer = _trainer(learner, folder, steps, machine, keeper)
        trainer.fit(learner, ckpt_path=state if steps else None)
    return Outcome(model=folder / MODEL, steps=learner.steps_done, seconds=learner.seconds, best=keeper.best)


def _check_shares(learner: Learner, machine: Machine) -> None:
    """Every process must have its part of every batch and of the validation split."""
    schedule, validation = learner.plan.schedule, learner.data.validation
    if schedule.batch % (schedule.accumulate * machine.devices * machine.num_nodes):
        raise ValueError(
            f"batch must be a multiple of accumulate x devices x nodes, got {schedule.batch} and "
            f"{schedule.accumulate} x {machine.devices} x {machine.num_nodes}"
        )
    if validation is not None and len(validation) < machine.devices * machine.num_nodes:
        raise ValueError(
            f"validation must have an image for each of {machine.devices * machine.num_nodes} processes, "
            f"got {len(validation)}"
        )


def _steps_of(state: Path) -> int:
    return int(read_state(state)["global_step"])


@rank_zero_only
def _tidy(folder: Path) -> None:
    """Makes the folder, without what a killed run left of a model that it was saving."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in (_aside(folder), *(folder / MODEL).glob(".saving-*")):
        shutil.rmtree(left, ignore_errors=True)


def _trainer(learner: Learner, folder: Path, steps: int, machine: Machine, keeper: Keeper) -> Trainer:
    plan = learner.plan
    return Trainer(
        default_root_dir=folder,
        accelerator=machine.accelerator,
        devices=machine.devices,
        num_nodes=machine.num_nodes,
        strategy=_strategy(learner, machine),
        precision=PRECISIONS[plan.engine.precision],
        max_epochs=-1,
        accumulate_grad_batches=plan.schedule.accumulate,
        gradient_clip_val=plan.optimizer.clip or None,
        reload_dataloaders_every_n_epochs=1,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=[
            CsvLog(folder / LOG, steps),
            TensorBoardLogger(folder, name="", version="tensorboard", purge_step=steps + 1),
        ],
        plugins=[keeper.states],
        callbacks=[keeper],
    )


def _strategy(learner: Learner, machine: Machine) -> str:
    several = machine.devices * machine.num_nodes > 1
    if machine.strategy == "ddp" or (machine.strategy == "auto" and several):
        # In a step that opens no cells the location module has no gradient.
        always = bool(learner.locations) and not learner.plan.walk.location_dropout
        return "ddp" if always or not isinstance(learner.model, TNet) else "ddp_find_unused_parameters_true"
    return machine.strategy


def _silence_lightning() -> None:
    """What Lightning would say of devices, workers and loggers is for those who write such programs."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning(\.|$)")


class StateIO(CheckpointIO):
    """Lightning's checkpoints as safetensors, each written whole or not at all.

    Only one of several processes writes; ``trouble`` is what kept it from doing so.
    """

    def __init__(self) -> None:
        self.trouble = ""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Writes the state."""
        del storage_options
        try:
            write_state(checkpoint, Path(path))
        except (OSError, SafetensorError) as error:
            self.trouble = _unsaved(Path(path), error)

    def load_checkpoint(
        self, path: Any, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Reads the state; nothing is unpickled."""
        del map_location, weights_only
        return read_state(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        """Removes the state."""
        Path(path).unlink(missing_ok=True)


class CsvLog(Logger):
    """One row for each of the steps that were logged. A run that goes on from a step forgets what came after it."""

    def __init__(self, path: Path, steps: int) -> None:
        super().__init__()
        self.path = path
        self.columns: list[str] = []
        self._begin([row for row in read_log(path) if int(row["step"]) <= steps])

    @property
    def name(self) -> str:
        """For Lightning."""
        return "csv"

    @property
    def version(self) -> str:
        """For Lightning."""
        return ""

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """They are in the run's recipe."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Adds a row; the file is written anew when a column is."""
        row = {"step": step, **metrics}
        if set(row) <= set(self.columns):
            with self.path.open("a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, self.columns, lineterminator="\n").writerow(row)
        else:
            self._begin([*read_log(self.path), row])

    @rank_zero_only
    def _begin(self, rows: list[dict[str, Any]]) -> None:
        self.columns = list(dict.fromkeys(name for row in rows for name, value in row.items() if value != ""))
        aside = self.path.with_name(f".{self.path.name}")
        with aside.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, extrasaction="ignore", lineterminator="\n")
            if self.columns:
                writer.writeheader()
            writer.writerows(rows)
        aside.replace(self.path)


def read_log(path: Path) -> list[dict[str, str]]:
    """The rows of a log, without the half of a row that a killed run may have left."""
    if not path.is_file():
        return []
    whole = path.read_text(encoding="utf-8").rpartition("\n")[0]
    return list(csv.DictReader(io.StringIO(whole)))


class Keeper(Callback):
    """Saves the state after every round, and the model whenever it has become better; stops when it does not."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.states = folder, StateIO()
        self.best: float | None = None
        self.waited = 0  # for how many validations in a row

    def state_dict(self) -> dict[str, Any]:
        """The best value so far."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The best value of the run that is resumed."""
        self.best, self.waited = state_dict["best"], state_dict["waited"]

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Saves. The model comes first: if it is all that is saved, the round is done again and saves it again."""
        assert isinstance(pl_module, Learner)
        validated, pl_module.validated = pl_module.validated, {}
        if pl_module.data.validation is None:
            self._keep(trainer, pl_module)
        elif validated:
            self._compare(trainer, pl_module, validated[pl_module.plan.engine.monitor])
        trainer.save_checkpoint(self.folder / STATE)
        raise_together(trainer, self.states.trouble)
        pl_module.start_clock()

    def _compare(self, trainer: Trainer, learner: Learner, value: float) -> None:
        engine = learner.plan.engine
        sign = -1 if engine.monitor == "loss" else 1
        if self.best is None or math.isnan(self.best) or sign * value > sign * self.best:
            self.best, self.waited = value, 0
            self._keep(trainer, learner)
        else:
            self.waited += 1
            if engine.patience and self.waited >= engine.patience:
                trainer.should_stop = learner.stopped = True

    def _keep(self, trainer: Trainer, learner: Learner) -> None:
        trouble = ""
        if trainer.is_global_zero:
            try:
                _save_whole(learner, self.folder)
            except (OSError, SafetensorError) as error:
                trouble = _unsaved(self.folder / MODEL, error)
        raise_together(trainer, trouble)


def _save_whole(learner: Learner, folder: Path) -> None:
    """Replaces the model's weights, or moves the whole folder into place where there was none."""
    if (folder / MODEL).is_dir():
        save(learner.model, folder / MODEL)
    else:
        save(learner.model, _aside(folder))
        _aside(folder).rename(folder / MODEL)


def _aside(folder: Path) -> Path:
    return folder / f".{MODEL}"


def _unsaved(path: Path, error: Exception) -> str:
    reason = (isinstance(error, OSError) and error.strerror) or error
    return f"{path} must be written, got {reason}; what was saved before is still there, and --resume goes on from it"
