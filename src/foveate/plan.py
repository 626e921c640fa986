"""What is to be known of a training run but its model and its data; and how its steps are divided."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from foveate.data.batches import steps_per_epoch
from foveate.objectives import LearningRule
from foveate.optimisation import OptimizerOptions, ScheduleOptions
from foveate.teaching import TeachingOptions

Monitor = Literal["accuracy", "auc", "loss"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WalkOptions:
    """How images are walked in training.

    ``locations`` None is the model's usual setting. With the probability ``location_dropout`` a step opens fewer
    cells in the first level: any number below the usual one, none included. ``select`` is ``top_k``, as the authors
    did, or ``sample`` (Eq. 7). Each image is walked ``samples`` times (M of Eq. 1).
    """

    locations: tuple[int, ...] | None = None
    location_dropout: float = 0.0
    select: Literal["top_k", "sample"] = "top_k"
    samples: int = 1

    def __post_init__(self) -> None:
        if self.locations is not None:
            object.__setattr__(self, "locations", tuple(self.locations))
        if not 0 <= self.location_dropout <= 1:
            raise ValueError(f"location_dropout must be in [0, 1], got {self.location_dropout}")
        if self.select not in ("top_k", "sample"):
            raise ValueError(f"select must be 'top_k' or 'sample', got {self.select!r}")
        if self.samples < 1:
            raise ValueError(f"samples must be at least 1, got {self.samples}")


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOptions:
    """How a run is kept, watched and stopped.

    The state is saved at least every ``save_every`` steps, the validation split is looked at every ``validate_every``
    epochs and at the end, and the model that did best by ``monitor`` is kept. Training stops when it has not become
    better ``patience`` times in a row (0: never). ``unread`` is how many images may turn out unreadable. ``norms``
    "frozen" leaves the statistics of batch norms as they came. ``precision`` "16" is for GPUs; a CPU takes bf16.
    """

    seed: int = 0
    precision: Literal["32", "bf16", "16"] = "32"
    norms: Literal["learned", "frozen"] = "learned"
    workers: int = 2
    save_every: int = 500
    log_every: int = 20
    validate_every: int = 1
    monitor: Monitor = "accuracy"
    patience: int = 0
    unread: int = 0

    def __post_init__(self) -> None:
        for name in ("save_every", "log_every", "validate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("workers", "patience", "unread"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        for name, known in (
            ("precision", ("32", "bf16", "16")),
            ("norms", ("learned", "frozen")),
            ("monitor", ("accuracy", "auc", "loss")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """All that is to be known of a training run but its model and its data."""

    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    schedule: ScheduleOptions = field(default_factory=lambda: ScheduleOptions(epochs=10))
    objective: LearningRule = field(default_factory=LearningRule)
    walk: WalkOptions = field(default_factory=WalkOptions)
    teaching: TeachingOptions = field(default_factory=TeachingOptions)
    engine: EngineOptions = field(default_factory=EngineOptions)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timetable:
    """How many ``steps`` training takes, or ``minutes``, and how they are divided.

    Validation comes after every ``period`` of steps. The state is saved after every ``round``, and a period ends one.
    """

    steps: int | None
    minutes: float | None
    period: int
    round: int

    @classmethod
    def of(cls, plan: Plan, count: int) -> Timetable:
        """The timetable for ``count`` images."""
        schedule, engine = plan.schedule, plan.engine
        if count < schedule.batch:
            raise ValueError(f"batch must be at most the number of training images, got {schedule.batch} and {count}")
        epoch = steps_per_epoch(count, schedule.batch)
        steps = None if schedule.epochs is None else max(1, round(epoch * schedule.epochs))
        return cls(
            steps=steps, minutes=schedule.minutes, period=epoch * engine.validate_every, round=engine.save_every
        )

    def progress(self, step: int, seconds: float) -> float:
        """The share of training that has passed."""
        if self.minutes is not None:
            return min(1.0, seconds / 60 / self.minutes)
        return min(1.0, step / (self.steps or 1))

    def next_round(self, step: int) -> range:
        """The steps from this one to where the state is saved next."""
        period_ends = (step // self.period + 1) * self.period
        return range(step, min(step + self.round, period_ends, self.steps or period_ends))
