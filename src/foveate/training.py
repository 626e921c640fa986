"""The training engine: a thin LightningModule around a plain model.

Everything that is random in step n follows from the seed and n, so a run that was killed goes on exactly.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric, MetricCollection
from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy

from foveate.data.batches import (
    Batch,
    Loader,
    Prepare,
    Share,
    Ticket,
    Unread,
    evaluation_tickets,
    seed_of,
    training_tickets,
)
from foveate.data.examples import LabelledData
from foveate.models import Model, TNet
from foveate.objectives import learn, move_baseline, weight_decay
from foveate.optimisation import build_optimizer, decayed_parameters
from foveate.plan import Plan, Timetable, WalkOptions
from foveate.processes import TrainingError, means_of_all, raise_together, rows_of_all, texts_of_all
from foveate.selection import Select, sample, top_k
from foveate.sources import ImageSource, as_sources
from foveate.teaching import WARM_STARTED, cell_features, evidence, first_logits, guided_by, scan, teach, warm_start
from foveate.traversal import Prediction, check_locations

Watch = Callable[["Learner", str], None]
"""Is told of the learner after every step, and what it is doing: "training" or "validating"."""


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """What to learn from and, where there is any, what to choose the best model by."""

    train: LabelledData
    prepare: Prepare
    validation: LabelledData | None = None
    prepare_validation: Prepare | None = None


class Learner(LightningModule):
    """Trains a model. Lightning's epochs are rounds here: what lies between two saved states.

    What is between images, the contrastive term and the statistics of batch norms, is of those that go through the
    model together: a process's part of a pass, as in the published program.
    """

    def __init__(self, model: Model, data: TrainingData, plan: Plan) -> None:
        super().__init__()
        self.model, self.data, self.plan = model, data, plan
        self.locations = _locations(model, plan.walk)
        self.timetable = Timetable.of(plan, len(data.train))
        self.batches_done = 0
        self.seconds = 0.0  # of training alone: neither validation nor saving
        self.began = 0.0  # the share of training that the warm start took: the learning rates' schedule follows it
        self.stopped = False  # before its time, because validation did not become better
        self.unread: dict[str, str] = {}  # "train/7" -> why; a file is met again in every epoch and counts once
        self.window: dict[str, list[float]] = {}  # what was measured since the last row of the log
        self.validated: dict[str, float] = {}  # what validation found, until the model was compared
        self.watch: Watch = lambda _learner, _what: None
        self.decayed = decayed_parameters(model, plan.optimizer.decayed) if plan.optimizer.weight_decay else []
        self.metrics = _metrics(model.config.num_classes)
        if plan.engine.monitor not in self.metrics:
            raise ValueError(
                f"monitor must be one of {', '.join(map(str, self.metrics))}, got {plan.engine.monitor!r}"
            )
        self._rewards: list[Tensor] = []  # of the passes of a step
        self._unread_here: list[Unread] = []  # in validation, by this process
        self._clock = time.monotonic()

    # --- one step ------------------------------------------------------------------------------------------

    def training_step(self, batch: Batch, _index: int) -> Tensor | None:
        """The loss of one batch: Eq. 3, the official L2 term, and what is taught."""
        self._note_unread("train", batch.unread)
        draw = self._seed_step()
        images, labels = self._tiled(batch)
        found = self._score(images, labels) if self._teaches else None
        prediction = self._walk(images, found, draw)
        learning = learn(prediction, labels, self._baseline, self.plan.objective)
        terms = dict(learning.terms)
        if self.decayed:
            terms["weight_decay"] = weight_decay(self.decayed, self.plan.optimizer.weight_decay)
        if found is not None and len(prediction.walk.levels) > 1:
            terms["teaching"] = self.plan.teaching.weight * self._teach(images, found)
        loss = torch.stack(list(terms.values())).sum()
        self._refuse_nonsense(terms)
        self._move_baseline(learning.mean_reward)
        hits = (prediction.logits.detach().argmax(1) == labels).float().mean()
        self._note({"loss": loss, "accuracy": hits, **terms})
        return loss

    def _walk(self, images: Tensor | list[ImageSource], found: Tensor | None, draw: torch.Generator) -> Prediction:
        prediction: Prediction
        if not isinstance(self.model, TNet):
            prediction = self.model(images)
            return prediction
        select: Select = top_k
        if self.plan.walk.select == "sample":
            select = partial(sample, generator=draw)
        if found is not None and self.plan.teaching.guide:
            select = guided_by(found, select)
        prediction = self.model(images, locations=self._drawn_locations(), select=select)
        return prediction

    def _drawn_locations(self) -> tuple[int, ...]:
        # All processes open equally many cells, so this must not depend on the process.
        draw = torch.Generator().manual_seed(seed_of(self.plan.engine.seed, "locations", self.steps_done))
        chance, fewer = torch.rand(2, generator=draw).tolist()
        if not self.locations or chance >= self.plan.walk.location_dropout:
            return self.locations
        count = int(fewer * self.locations[0])
        return (count, *self.locations[1:]) if count else ()

    @property
    def _teaches(self) -> bool:
        options = self.plan.teaching
        return isinstance(self.model, TNet) and options.share > 0 and self.progress < options.until

    def _score(self, images: Tensor | list[ImageSource], labels: Tensor) -> Tensor:
        count = max(1, round(self.plan.teaching.share * len(labels)))
        assert isinstance(self.model, TNet)
        logits = scan(self.model, as_sources(images)[:count])
        return evidence(logits, labels[:count], self.plan.teaching.evidence)

    def _teach(self, images: Tensor | list[ImageSource], found: Tensor) -> Tensor:
        assert isinstance(self.model, TNet)
        options = self.plan.teaching
        logits = first_logits(self.model, as_sources(images)[: len(found)], reach=options.reach)
        return teach(logits, found, options.temperature)

    def _tiled(self, batch: Batch) -> tuple[Tensor | list[ImageSource], Tensor]:
        samples = self.plan.walk.samples if isinstance(self.model, TNet) else 1
        images = batch.images
        tiled = images.repeat(samples, 1, 1, 1) if isinstance(images, Tensor) else images * samples
        return tiled, batch.labels.repeat(samples)

    def _seed_step(self) -> torch.Generator:
        seed = seed_of(self.plan.engine.seed, "step", self.batches_done, self.global_rank)
        torch.manual_seed(seed)  # dropout and stochastic depth know no other source
        return torch.Generator().manual_seed(seed)

    @property
    def _baseline(self) -> Tensor:
        return self.model.reward_baseline if isinstance(self.model, TNet) else torch.tensor(0.5)

    def _move_baseline(self, mean_reward: Tensor) -> None:
        """Once a step, by all of its passes in all processes."""
        if not isinstance(self.model, TNet):
            return
        self._rewards.append(mean_reward)
        if len(self._rewards) == self.plan.schedule.accumulate:
            reward = self.trainer.strategy.reduce(torch.stack(self._rewards).mean(), reduce_op="mean")
            self.model.reward_baseline.copy_(move_baseline(self.model.reward_baseline, reward))
            self._rewards.clear()

    def _refuse_nonsense(self, terms: dict[str, Tensor]) -> None:
        wrong = [f"{name} {float(value.detach())}" for name, value in terms.items() if not torch.isfinite(value)]
        message = (
            f"loss must be finite, got {', '.join(wrong)} at step {self.steps_done}; "
            "a lower optimizer.lr or optimizer.clip=1 may help"
        )
        raise_together(self.trainer, message if wrong else "")

    def _note_unread(self, split: str, unread: Sequence[Unread]) -> None:
        mine = "\n".join(f"{split}/{item.index}\t{item.reason}" for item in unread)
        lines = [line for text in texts_of_all(self.trainer, mine) for line in text.splitlines()]
        self.unread |= dict(line.split("\t", 1) for line in lines)
        if len(self.unread) > self.plan.engine.unread:
            raise TrainingError(
                f"at most {self.plan.engine.unread} images may be unreadable (engine.unread), got "
                f"{len(self.unread)}: {'; '.join(self.unread.values())}"
            )

    def _warm_start(self, model: TNet) -> None:
        seed, share, batch = self.plan.engine.seed, self._share, self.plan.schedule.batch
        steps = range(max(1, round(self.plan.teaching.warm_start / batch)))
        tickets = training_tickets(len(self.data.train), batch, steps, seed=seed_of(seed, "warm"), share=share)
        features, labels = [], []
        for part in self._loader(tickets):
            self._note_unread("train", part.unread)
            part = self.transfer_batch_to_device(part, self.device, 0)
            features.append(cell_features(model, as_sources(part.images)))
            labels.append(part.labels)
            self.watch(self, "looking at cells")
        torch.manual_seed(seed)
        # All processes fit the same classifier to what all of them have seen.
        seen, known = (rows_of_all(self.trainer, torch.cat(parts)) for parts in (features, labels))
        warm_start(model, seen, known, generator=torch.Generator().manual_seed(seed))

    # --- how far it has come -------------------------------------------------------------------------------

    @property
    def steps_done(self) -> int:
        """How many times the weights were changed."""
        return self.batches_done // self.plan.schedule.accumulate

    @property
    def progress(self) -> float:
        """The share of training that has passed."""
        return self.timetable.progress(self.steps_done, self.seconds)

    @property
    def finished(self) -> bool:
        """Whether all is done that was planned, or there is no use in going on."""
        return self.stopped or self.progress >= 1

    @property
    def told(self) -> str:
        """In a few words how it goes."""
        recent = [f"{name} {self.window[name][-1]:.3f}" for name in ("loss", "accuracy") if self.window.get(name)]
        rate = f"{self.steps_done * self.plan.schedule.batch / self.seconds:.1f} images/s" if self.seconds else ""
        return ", ".join([f"step {self.steps_done}", *recent, rate])

    def start_clock(self) -> None:
        """What was done until now does not count as training."""
        self._clock = time.monotonic()

    def on_train_start(self) -> None:
        """The clock starts; a run that begins takes its warm start, which counts as training."""
        self.start_clock()
        if isinstance(self.model, TNet) and self.plan.teaching.warm_start and not self.batches_done:
            self._set_modes()
            self._warm_start(self.model)
            self._count_time()
            self.began = self.progress

    def on_train_epoch_start(self) -> None:
        """A round begins."""
        self._set_modes()

    def _set_modes(self) -> None:
        self.model.train()
        if self.plan.engine.norms == "frozen":
            for part in self.model.modules():
                if isinstance(part, nn.modules.batchnorm._BatchNorm):
                    part.eval()

    def on_train_batch_start(self, *_: Any) -> None:
        """Sets the learning rates."""
        rate = self.plan.schedule.rate((self.progress - self.began) / (1 - self.began))
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = group["initial_lr"] * rate

    def on_train_batch_end(self, *_: Any) -> None:
        """Counts; at the end of a step writes to the log, and says whether to validate and whether to stop."""
        self.batches_done += 1
        self._count_time()
        if self.batches_done % self.plan.schedule.accumulate:
            return
        self.watch(self, "training")
        if self.steps_done % self.plan.engine.log_every == 0 or self.finished:
            self._write_row(self._emptied_window())
        if self.finished:
            self.trainer.should_stop = True
        due = self.finished or self.steps_done % self.timetable.period == 0
        self.trainer.limit_val_batches = 1.0 if due else 0

    def _count_time(self) -> None:
        # All processes have the same clock, or else their learning rates would differ.
        (passed,) = means_of_all(self.trainer, [time.monotonic() - self._clock])
        self.seconds += passed
        self.start_clock()

    # --- validation ----------------------------------------------------------------------------------------

    def validation_step(self, batch: Batch, _index: int) -> None:
        """Adds a batch to the metrics, at the locations that are trained."""
        self._unread_here += batch.unread
        if len(batch.labels):
            images, labels = batch.images, batch.labels
            options = {"locations": self.locations} if isinstance(self.model, TNet) else {}
            logits = self.model(images, **options).logits.float()
            self.metrics["loss"].update(nn.functional.cross_entropy(logits, labels, reduction="none"))
            self.metrics["accuracy"].update(logits, labels)
            if "auc" in self.metrics:
                self.metrics["auc"].update(logits.softmax(1)[:, 1], labels)
        self.watch(self, "validating")

    def on_validation_epoch_end(self) -> None:
        """Writes the metrics down."""
        # Processes may have different numbers of batches, so they speak of these only now.
        self._note_unread("validation", self._unread_here)
        self._unread_here = []
        self.validated = {name: _computed(metric) for name, metric in self.metrics.items()}
        self.metrics.reset()
        self._write_row({f"validation_{name}": value for name, value in self.validated.items()})

    # --- what Lightning asks for ---------------------------------------------------------------------------

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam in two groups."""
        learned = WARM_STARTED if self.plan.teaching.warm_start and isinstance(self.model, TNet) else ()
        return build_optimizer(self.model, self.plan.optimizer, learned=learned)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Pixels and labels; sources stay where they are."""
        del dataloader_idx
        images = batch.images.to(device) if isinstance(batch.images, Tensor) else batch.images
        return batch._replace(images=images, labels=batch.labels.to(device))

    def train_dataloader(self) -> Loader:
        """The batches of the next round."""
        schedule, seed = self.plan.schedule, self.plan.engine.seed
        count, share = len(self.data.train), self._share
        steps = range(0) if self.finished else self.timetable.next_round(self.steps_done)
        whole = training_tickets(count, schedule.batch, steps, seed=seed, share=share)
        parts = [tickets[part :: schedule.accumulate] for tickets in whole for part in range(schedule.accumulate)]
        return self._loader(parts)

    def _loader(self, tickets: Sequence[Sequence[Ticket]]) -> Loader:
        engine = self.plan.engine
        return Loader(self.data.train, tickets, self.data.prepare, workers=engine.workers, spare=engine.unread)

    def val_dataloader(self) -> Loader | list[Loader]:
        """The validation split."""
        if self.data.validation is None or self.data.prepare_validation is None:
            return []
        size = max(1, self.plan.schedule.batch // self.plan.schedule.accumulate // self._share.world)
        tickets = evaluation_tickets(len(self.data.validation), size, share=self._share)
        return Loader(self.data.validation, tickets, self.data.prepare_validation, workers=self.plan.engine.workers)

    @property
    def _share(self) -> Share:
        return Share(rank=self.global_rank, world=self.trainer.world_size)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds what Lightning does not know."""
        checkpoint["learner"] = {
            "batches_done": self.batches_done,
            "seconds": self.seconds,
            "began": self.began,
            "stopped": self.stopped,
            "unread": self.unread,
            "window": self.window,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Takes it back."""
        for name, value in checkpoint["learner"].items():
            setattr(self, name, value)

    # --- the log -------------------------------------------------------------------------------------------

    def _note(self, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            self.window.setdefault(name, []).append(float(value.detach()))

    def _emptied_window(self) -> dict[str, float]:
        own = {name: sum(values) / len(values) for name, values in self.window.items()}
        self.window = {}
        row = dict(zip(own, means_of_all(self.trainer, list(own.values())), strict=True))
        rates = [group["lr"] for group in self.trainer.optimizers[0].param_groups]
        return row | {"lr": rates[0], "baseline": float(self._baseline)}

    def _write_row(self, row: dict[str, float]) -> None:
        trouble = ""
        try:
            for logger in self.trainer.loggers:
                logger.log_metrics(row | {"seconds": round(self.seconds, 3)}, step=self.steps_done)
        except OSError as error:
            trouble = f"log must be written in {self.trainer.default_root_dir}, got {error.strerror or error}"
        raise_together(self.trainer, trouble)


def _locations(model: Model, walk: WalkOptions) -> tuple[int, ...]:
    if not isinstance(model, TNet):
        return ()
    wanted = (model.config.locations or ()) if walk.locations is None else walk.locations
    return check_locations(wanted, model.grid.cells)


def _metrics(classes: int) -> MetricCollection:
    metrics: dict[str, Metric | MetricCollection] = {
        "loss": MeanMetric(),
        "accuracy": MulticlassAccuracy(num_classes=classes, average="micro"),
    }
    if classes == 2:
        metrics["auc"] = BinaryAUROC()
    return MetricCollection(metrics, compute_groups=False)


def _computed(metric: Metric) -> float:
    """A metric's value; nan where it has none, as the area under the curve of one class."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        value = float(metric.compute())
    return math.nan if any("samples in targets" in str(warning.message) for warning in told) else value
