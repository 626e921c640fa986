"""Runs in a folder: they end with the same weights and the same log, whatever happens to them on the way."""

from __future__ import annotations

import math
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from foveate.checkpoints import load
from foveate.fitting import LOG, MODEL, STATE, CsvLog, Machine, fit, read_log
from foveate.plan import Plan
from foveate.processes import TrainingError
from foveate.state_files import read_state
from foveate.training import Learner
from tests.tiny import Corners, losses_of, rows_of, state_of, tiny_learner, tiny_model, tiny_plan

pytestmark = pytest.mark.gradients


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of several processes on few cores wait for each other far longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Stopped(Exception):  # noqa: N818, it stands for a power cut
    """Ends a run in the middle."""


def stop_at(step: int) -> Callable[[Learner, str], None]:
    def watch(learner: Learner, _what: str) -> None:
        if learner.steps_done == step:
            raise Stopped

    return watch


# Everything that is random in training is at work here.
EVERYTHING = {
    "schedule": {"accumulate": 2, "epochs": 3},
    "walk": {"select": "sample", "samples": 2, "location_dropout": 0.5},
    "optimizer": {"weight_decay": 1e-4, "backbone_lr": 1e-4, "clip": 1.0},
    "engine": {"log_every": 2},
}
DROPPING = {"backbone": "test_byobnet", "dropout": 0.3, "stochastic_depth": 0.3}


def everything() -> Learner:
    return tiny_learner(tiny_plan(**EVERYTHING), model=tiny_model(**DROPPING))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("whole")
    with torch.enable_grad():
        fit(everything(), folder)
    return folder


def test_a_run_leaves_its_model_its_state_and_its_logs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = []
    outcome = fit(
        tiny_learner(), tmp_path / "run", watch=lambda learner, what: told.append((learner.steps_done, what))
    )
    run = tmp_path / "run"
    assert {path.name for path in run.iterdir()} == {MODEL, STATE, LOG, "tensorboard"}
    assert {path.name for path in (run / MODEL).iterdir()} == {"config.json", "model.safetensors"}
    assert outcome.steps == 8
    assert outcome.model == run / MODEL
    assert outcome.best == max(losses_of(run, "validation_accuracy"))
    assert load(outcome.model).config.num_classes == 4
    assert told == [
        *((step, "training") for step in (1, 2, 3, 4)), (4, "validating"), (4, "validating"),
        *((step, "training") for step in (5, 6, 7, 8)), (8, "validating"), (8, "validating"),
    ]  # fmt: skip
    # Lightning has much to say of devices, workers and loggers; a user has no use for it.
    assert capfd.readouterr() == ("", "")


def test_tensorboard_shows_what_the_log_says(whole: Path) -> None:
    events = EventAccumulator(str(whole / "tensorboard")).Reload()
    rows = read_log(whole / LOG)
    for name in set(events.Tags()["scalars"]) - {"epoch"}:
        shown = [(event.step, event.value) for event in events.Scalars(name)]
        assert shown == [(int(row["step"]), pytest.approx(float(row[name]))) for row in rows if row[name]], name
    assert {"loss", "validation_accuracy", "lr", "baseline"} <= set(events.Tags()["scalars"])


@pytest.mark.parametrize("step", [1, 3, 4, 5, 12])
def test_a_run_that_was_stopped_goes_on_exactly(step: int, whole: Path, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        fit(everything(), tmp_path, watch=stop_at(step))
    outcome = fit(everything(), tmp_path, resume=True)
    assert outcome.steps == 12
    assert rows_of(tmp_path) == rows_of(whole)
    assert state_of(tmp_path) == state_of(whole)
    assert (tmp_path / MODEL / "model.safetensors").read_bytes() == (whole / MODEL / "model.safetensors").read_bytes()
    # TensorBoard leaves out what is done again.
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss")] == [
        int(row["step"]) for row in rows_of(whole) if row["loss"]
    ]


def test_another_seed_is_another_run(whole: Path, tmp_path: Path) -> None:
    other = tiny_plan(**EVERYTHING | {"engine": {"log_every": 2, "seed": 1}})
    fit(tiny_learner(other, model=tiny_model(**DROPPING)), tmp_path)
    assert losses_of(tmp_path) != losses_of(whole)


def test_a_finished_run_stays_as_it_is(tmp_path: Path) -> None:
    fit(everything(), tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / STATE, tmp_path / LOG)}
    assert fit(everything(), tmp_path, resume=True).steps == 12
    assert before == {path: path.read_bytes() for path in before}


def test_the_state_is_saved_where_the_plan_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved, validated = [], []
    monkeypatch.setattr(
        "foveate.fitting.write_state", lambda tree, _path: saved.append(tree["learner"]["batches_done"])
    )
    plan = tiny_plan(schedule={"epochs": 3.5}, engine={"save_every": 3, "validate_every": 2})
    learner = tiny_learner(plan)
    monkeypatch.setattr(learner, "on_validation_start", lambda: validated.append(learner.steps_done))
    fit(learner, tmp_path)
    # Every 3 steps, counted anew from each validation; and at the end, which is in the middle of an epoch.
    assert saved == [3, 6, 8, 11, 14]
    assert validated == [8, 14]


def test_a_run_shorter_than_an_epoch_ends_with_a_model(tmp_path: Path) -> None:
    outcome = fit(tiny_learner(tiny_plan(schedule={"epochs": 0.5})), tmp_path)
    assert outcome.steps == 2
    assert len(losses_of(tmp_path, "validation_loss")) == 1
    assert load(outcome.model)


def test_without_a_validation_split_the_last_model_is_kept(tmp_path: Path) -> None:
    learner = tiny_learner()
    learner.data = type(learner.data)(train=learner.data.train, prepare=learner.data.prepare)
    outcome = fit(learner, tmp_path)
    assert outcome.best is None
    kept = load(outcome.model).state_dict()
    assert all(torch.equal(kept[name], value) for name, value in learner.model.state_dict().items())


def test_the_kept_model_is_the_one_that_did_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter([0.5, 0.75, 0.25, 0.75])
    weights = []
    learner = tiny_learner(tiny_plan(schedule={"epochs": 4}))
    end = learner.on_validation_epoch_end

    def validate() -> None:
        end()
        learner.validated["accuracy"] = next(values)
        weights.append(learner.model.classifier[1].weight.clone())

    monkeypatch.setattr(learner, "on_validation_epoch_end", validate)
    outcome = fit(learner, tmp_path)
    assert outcome.best == 0.75
    assert torch.equal(load(outcome.model).classifier[1].weight, weights[1])  # of equals, the first
    assert not torch.equal(weights[1], weights[3])


def monitored(values: list[float], patience: int, monitor: str = "loss") -> Learner:
    """A learner whose validation finds these values, whatever it learns."""
    plan = tiny_plan(schedule={"epochs": len(values)}, engine={"patience": patience, "monitor": monitor})
    learner = tiny_learner(plan)
    end = learner.on_validation_epoch_end

    def validate() -> None:
        end()
        learner.validated[monitor] = values[learner.steps_done // 4 - 1]

    learner.on_validation_epoch_end = validate  # type: ignore[method-assign]
    return learner


@pytest.mark.parametrize(
    ("values", "patience", "steps", "best"),
    [
        ([4, 3, 3.5, 3.2, 1, 1], 2, 16, 3),  # two in a row that are not better
        ([4, 3, 3.5, 2, 2.5, 1], 2, 24, 1),
        ([4, 3, 3.5, 3.2, 1, 2], 0, 24, 1),  # never stops
        ([4, 4, 4, 4], 1, 8, 4),  # as good is not better
        ([math.nan, 3, math.nan, 2], 2, 16, 2),
    ],
)
def test_training_stops_when_validation_does_not_become_better(
    values: list[float], patience: int, steps: int, best: float, tmp_path: Path
) -> None:
    outcome = fit(monitored(values, patience), tmp_path)
    assert (outcome.steps, outcome.best) == (steps, best)
    # Whoever resumes a run that has stopped does not go on with it.
    assert fit(monitored(values, patience), tmp_path, resume=True).steps == steps


def test_patience_counts_across_a_resumption(tmp_path: Path) -> None:
    values = [4.0, 3, 3.5, 3.2, 1, 1]
    learner = monitored(values, 2)
    with pytest.raises(Stopped):
        fit(learner, tmp_path, watch=stop_at(13))
    assert fit(monitored(values, 2), tmp_path, resume=True).steps == 16


# --- minutes ---------------------------------------------------------------------------------------------


class Clock:
    """Each step takes ten seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def timed(monkeypatch: pytest.MonkeyPatch, minutes: float) -> Learner:
    clock = Clock()
    monkeypatch.setattr("foveate.training.time", clock)
    learner = tiny_learner(tiny_plan(schedule={"minutes": minutes, "drops": (0.5,)}, engine={"save_every": 100}))
    step = learner.training_step

    def tick(*args: object) -> object:
        clock.now += 10
        return step(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(learner, "training_step", tick)
    monkeypatch.setattr(learner, "on_validation_start", lambda: setattr(clock, "now", clock.now + 1000))
    return learner


@pytest.mark.parametrize(("minutes", "steps"), [(0.1, 1), (0.5, 3), (1.0, 6)])
def test_minutes_are_of_training_alone_and_end_with_validation(
    minutes: float, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = fit(timed(monkeypatch, minutes), tmp_path)
    assert (outcome.steps, outcome.seconds) == (steps, 10 * steps)
    assert [int(row["step"]) for row in rows_of(tmp_path) if row["validation_loss"]] == ([4] if steps > 4 else []) + [
        steps
    ]
    assert load(outcome.model)
    assert read_state(tmp_path / STATE)["learner"]["batches_done"] == steps
    assert fit(timed(monkeypatch, minutes), tmp_path, resume=True).steps == steps


def test_a_run_bound_by_minutes_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Stopped):
        fit(timed(monkeypatch, 1.5), tmp_path, watch=stop_at(6))
    outcome = fit(timed(monkeypatch, 1.5), tmp_path, resume=True)
    assert (outcome.steps, outcome.seconds) == (9, 90)  # the fifth and sixth were done again
    # Half of 9 steps is 4.5: the fifth began at 40 of 90 seconds, the sixth at 50.
    assert losses_of(tmp_path, "lr") == pytest.approx([1e-3] * 5 + [1e-4] * 4)


# --- what goes wrong -------------------------------------------------------------------------------------


def test_a_folder_is_not_used_twice(tmp_path: Path) -> None:
    fit(tiny_learner(), tmp_path)
    before = state_of(tmp_path)
    with pytest.raises(ValueError, match=r"must not hold another run unless that is resumed, got last\.state"):
        fit(tiny_learner(), tmp_path)
    assert state_of(tmp_path) == before


def test_only_a_run_can_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"a run that is to be resumed must be in .*nowhere, got no such fol"):
        fit(tiny_learner(), tmp_path / "nowhere", resume=True)


@pytest.mark.parametrize(
    ("schedule", "machine", "message"),
    [
        ({"batch": 4}, Machine(devices=3), "a multiple of accumulate x devices x nodes, got 4 and 1 x 3 x 1"),
        ({"batch": 4, "accumulate": 2}, Machine(devices=2, num_nodes=2), "got 4 and 2 x 2 x 2"),
    ],
)  # fmt: skip
def test_batches_must_be_divisible(schedule: dict[str, int], machine: Machine, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        fit(tiny_learner(tiny_plan(schedule=schedule)), tmp_path / "run", machine=machine)
    assert not (tmp_path / "run").exists()


def test_each_process_validates(tmp_path: Path) -> None:
    learner = tiny_learner(validation=Corners(1))
    with pytest.raises(ValueError, match="validation must have an image for each of 2 processes, got 1"):
        fit(learner, tmp_path, machine=Machine(devices=2))


def test_machines_have_devices() -> None:
    with pytest.raises(ValueError, match="devices must be at least 1, got 0"):
        Machine(devices=0)


def unread_plan(allowed: int) -> Plan:
    return tiny_plan(schedule={"epochs": 3}, engine={"unread": allowed})


def test_unreadable_images_end_a_run(tmp_path: Path) -> None:
    message = (
        r"at most 0 images may be unreadable \(engine.unread\), got 1: image-3.png must be a whole image, got a dam"
    )
    with pytest.raises(TrainingError, match=message):
        fit(tiny_learner(unread_plan(0), train=Corners(16, broken={3})), tmp_path)


def test_more_unreadable_images_than_allowed_end_a_run(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"at most 2 images .* got 3: ") as caught:
        fit(tiny_learner(unread_plan(2), train=Corners(16, broken={3, 7, 11})), tmp_path)
    for index in (3, 7, 11):
        assert str(caught.value).count(f"image-{index}.png") == 1
    assert "\n" not in str(caught.value)


def test_unreadable_images_count_once_in_all_epochs_and_resumptions(tmp_path: Path) -> None:
    def learner() -> Learner:
        broken = {"train": Corners(16, broken={3, 4}), "validation": Corners(6, broken={2}, seed=1)}
        return tiny_learner(unread_plan(3), **broken)

    with pytest.raises(Stopped):
        fit(learner(), tmp_path, watch=stop_at(5))
    resumed = learner()
    fit(resumed, tmp_path, resume=True)
    assert {key: reason.split()[0] for key, reason in resumed.unread.items()} == {
        "train/3": "image-3.png",
        "train/4": "image-4.png",
        "validation/2": "image-2.png",
    }
    # What was unreadable once has been left out, even if it is mended by now.
    with pytest.raises(Stopped):
        fit(learner(), tmp_path / "mended", watch=stop_at(5))
    mended = tiny_learner(unread_plan(3))
    fit(mended, tmp_path / "mended", resume=True)
    assert set(mended.unread) == set(resumed.unread)
    # Five of six were validated.
    assert all(5 * value == pytest.approx(round(5 * value)) for value in losses_of(tmp_path, "validation_accuracy"))


def test_batches_are_whole_where_some_images_are_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = tiny_learner(unread_plan(2), train=Corners(16, broken={3, 4}))
    sizes = []
    step = learner.training_step
    monkeypatch.setattr(learner, "training_step", lambda *a: (sizes.append(len(a[0].labels)), step(*a))[1])
    fit(learner, tmp_path)
    assert sizes == [4] * 12


def poisoned(monkeypatch: pytest.MonkeyPatch, step: int) -> Learner:
    """A learner whose weights overflow after a step."""
    learner = tiny_learner()
    end = learner.on_train_batch_end

    def spoil(*args: object) -> None:
        end(*args)
        if learner.steps_done == step:
            learner.model.classifier[1].bias.data[0] = math.inf

    monkeypatch.setattr(learner, "on_train_batch_end", spoil)
    return learner


def test_a_loss_that_is_no_number_ends_a_run_and_spoils_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(tiny_learner(), tmp_path / "whole")
    with pytest.raises(
        TrainingError, match=r"^loss must be finite, got cross_entropy nan.* at step 5; a lower optimi"
    ):
        fit(poisoned(monkeypatch, 5), tmp_path / "run")
    assert fit(tiny_learner(), tmp_path / "run", resume=True).steps == 8
    assert state_of(tmp_path / "run") == state_of(tmp_path / "whole")


@pytest.fixture
def no_room() -> Iterator[Callable[[int], None]]:
    """Makes the operating system refuse files of more bytes, as it does when a disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


# The state is about three times as large as the model, whose weights are all but a few of its bytes.
@pytest.mark.parametrize(("share", "culprit"), [(0.9, STATE), (0.2, MODEL)])
def test_a_full_disk_ends_a_run_and_spoils_nothing(
    share: float, culprit: str, whole: Path, tmp_path: Path, no_room: Callable[[int], None]
) -> None:
    with pytest.raises(Stopped):
        fit(everything(), tmp_path, watch=stop_at(6))
    before = {path: path.read_bytes() for path in (tmp_path / STATE, tmp_path / MODEL / "model.safetensors")}
    no_room(int(share * (tmp_path / STATE).stat().st_size))
    learner = everything()
    if culprit == MODEL:
        end = learner.on_validation_epoch_end
        learner.on_validation_epoch_end = lambda: (end(), learner.validated.update(accuracy=2.0))  # type: ignore
        learner.timetable = type(learner.timetable)(steps=12, minutes=None, period=1, round=3)
    with pytest.raises(
        TrainingError, match=f"{culprit} must be written, got [^,]*large[^,]*; what was saved before"
    ) as e:
        fit(learner, tmp_path, resume=True)
    assert "\n" not in str(e.value)
    assert {path: path.read_bytes() for path in before} == before
    no_room(resource.RLIM_INFINITY)
    fit(everything(), tmp_path, resume=True)
    assert state_of(tmp_path) == state_of(whole)
    assert rows_of(tmp_path) == rows_of(whole)


def test_a_log_that_cannot_be_written_ends_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("foveate.fitting.CsvLog.log_metrics", fail)
    with pytest.raises(TrainingError, match=r"^log must be written in .*, got No space left on device$"):
        fit(tiny_learner(), tmp_path)


def test_what_killed_runs_left_does_not_pile_up(tmp_path: Path) -> None:
    for left in (".model", "model/.saving-1", "model/.saving-2"):
        (tmp_path / left).mkdir(parents=True)
        (tmp_path / left / "model.safetensors").write_bytes(b"half")
    for left in (f".{STATE}", f".{LOG}"):
        (tmp_path / left).write_bytes(b"half")
    fit(tiny_learner(), tmp_path, resume=True)
    assert {path.name for path in tmp_path.iterdir()} == {MODEL, STATE, LOG, "tensorboard"}
    assert {path.name for path in (tmp_path / MODEL).iterdir()} == {"config.json", "model.safetensors"}


# --- the log ---------------------------------------------------------------------------------------------


def test_a_log_gains_columns(tmp_path: Path) -> None:
    log = CsvLog(tmp_path / LOG, 0)
    log.log_metrics({"loss": 1.5}, 1)
    log.log_metrics({"accuracy": 0.25}, 1)
    log.log_metrics({"loss": 1.25}, 2)
    assert (tmp_path / LOG).read_text() == "step,loss,accuracy\n1,1.5,\n1,,0.25\n2,1.25,\n"


def test_a_log_forgets_what_came_after_the_state(tmp_path: Path) -> None:
    (tmp_path / LOG).write_text("step,loss,accuracy\n1,1.5,\n12,1.25,\n13,,0.5\n")
    log = CsvLog(tmp_path / LOG, 12)
    assert (tmp_path / LOG).read_text() == "step,loss\n1,1.5\n12,1.25\n"  # a column, too, comes when it is needed
    log.log_metrics({"loss": 1.0}, 13)
    assert (tmp_path / LOG).read_text() == "step,loss\n1,1.5\n12,1.25\n13,1.0\n"


@pytest.mark.parametrize("half", ["1", "13", "13,1.2", "13,1.25"])
def test_half_a_row_is_no_row(half: str, tmp_path: Path) -> None:
    (tmp_path / LOG).write_text(f"step,loss\n1,1.5\n{half}")
    CsvLog(tmp_path / LOG, 20)
    assert read_log(tmp_path / LOG) == [{"step": "1", "loss": "1.5"}]


def test_a_new_run_begins_an_empty_log(tmp_path: Path) -> None:
    (tmp_path / LOG).write_text("step,loss\n1,1.5\n")
    CsvLog(tmp_path / LOG, 0)
    assert read_log(tmp_path / LOG) == []
