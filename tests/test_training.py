"""What one step of training does, against closed forms and against itself done another way."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foveate.data.transforms import Resized
from foveate.fitting import fit
from foveate.models import Model, TNet
from foveate.objectives import LearningRule, learn, move_baseline
from foveate.plan import EngineOptions, Timetable, WalkOptions
from foveate.training import Learner, TrainingData
from foveate.traversal import Prediction
from tests.tiny import Corners, losses_of, rows_of, tiny_learner, tiny_model, tiny_plan

pytestmark = pytest.mark.gradients

FROZEN = {"workers": 0, "log_every": 1, "norms": "frozen"}
STILL = {"lr": 1e-30}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of several processes on few cores wait for each other far longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


Call = tuple[tuple[int, ...], Prediction]


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """The locations and the result of every training pass."""
    seen: list[Call] = []
    forward = TNet.forward

    def spy(self: TNet, images: Any, locations: Any = None, **options: Any) -> Prediction:
        prediction = forward(self, images, locations, **options)
        if self.training:
            seen.append((locations, prediction))
        return prediction

    monkeypatch.setattr(TNet, "forward", spy)
    return seen


def unequal(one: nn.Module, other: nn.Module) -> float:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


# --- the loss --------------------------------------------------------------------------------------------


def test_a_row_of_the_log_is_the_learning_rule(tmp_path: Path) -> None:
    plan = tiny_plan(
        schedule={"batch": 16, "epochs": 1},
        objective={"contrastive": 0.5},
        optimizer={"weight_decay": 0.01},
        engine=FROZEN,
    )
    model, twin = tiny_model(), tiny_model()
    data = Corners(16)
    learner = Learner(model, TrainingData(train=data, prepare=Resized((48, 48))), plan)
    fit(learner, tmp_path)
    twin.train()
    for part in twin.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.eval()
    images = torch.stack([Resized((48, 48))(data[i], torch.Generator()) for i in range(16)])
    labels = torch.tensor([data[i].label for i in range(16)])
    with torch.no_grad():
        prediction = twin(images, (2,))
    expected = learn(prediction, labels, torch.tensor(0.5), LearningRule(contrastive=0.5))
    (row,) = rows_of(tmp_path)
    for name, term in expected.terms.items():
        assert float(row[name]) == pytest.approx(float(term), rel=1e-4, abs=1e-6), name
    decayed = sum(float(v.detach().square().sum()) for n, v in twin.named_parameters() if ".bn" not in n)
    assert float(row["weight_decay"]) == pytest.approx(0.01 * decayed, rel=1e-4)
    assert float(row["loss"]) == pytest.approx(float(expected.loss) + 0.01 * decayed, rel=1e-4)
    assert float(row["accuracy"]) == pytest.approx(float((prediction.logits.argmax(1) == labels).float().mean()))
    assert float(row["baseline"]) == pytest.approx(float(move_baseline(torch.tensor(0.5), expected.mean_reward)))
    assert float(row["baseline"]) == float(model.reward_baseline)


def run(folder: Path, model: Model | None = None, **sections: dict[str, Any]) -> tuple[Model, list[float]]:
    """The model and the losses of a run in which norms do not learn."""
    plan = tiny_plan(**{"engine": FROZEN} | sections)
    learner = tiny_learner(plan, model=model or tiny_model())
    fit(learner, folder)
    return learner.model, losses_of(folder)


@pytest.mark.parametrize("accumulate", [2, 4])
def test_passes_together_are_one_step(accumulate: int, tmp_path: Path) -> None:
    schedule = {"batch": 8, "epochs": 3}
    walk = {"location_dropout": 0.5}
    at_once, losses = run(tmp_path / "1", schedule=schedule, optimizer={"lr": 1e-4, "weight_decay": 1e-3}, walk=walk)
    in_parts, same = run(
        tmp_path / "2",
        schedule=schedule | {"accumulate": accumulate},
        optimizer={"lr": 1e-4, "weight_decay": 1e-3},
        walk=walk,
    )
    assert len(losses) == 6
    assert same == pytest.approx(losses, rel=1e-4)
    assert losses_of(tmp_path / "2", "baseline") == pytest.approx(losses_of(tmp_path / "1", "baseline"), rel=1e-5)
    # Adam divides by the gradient's size, so that rounding can move a parameter whose gradient is nothing.
    assert unequal(at_once, in_parts) < 6 * 1e-4
    for one, other in zip(at_once.classifier.parameters(), in_parts.classifier.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_samples_are_part_of_the_batch(tmp_path: Path, walks: list[Call]) -> None:
    """Twice the same walk gives the same means; samples that are drawn differ from each other."""
    _, once = run(tmp_path / "1", optimizer=STILL)
    _, twice = run(tmp_path / "2", optimizer=STILL, walk={"samples": 2})
    assert twice == pytest.approx(once, rel=1e-4)
    assert {len(prediction.logits) for _, prediction in walks[8:]} == {8}
    walks.clear()
    _, drawn = run(tmp_path / "3", optimizer=STILL, walk={"samples": 2, "select": "sample"})
    cells = [prediction.walk.levels[1].cells for _, prediction in walks]
    assert any(not torch.equal(chosen[:4], chosen[4:]) for chosen in cells)
    assert drawn != pytest.approx(once, rel=1e-4)


def test_sampling_follows_the_seed(tmp_path: Path, walks: list[Call]) -> None:
    def cells(folder: str, seed: int, select: str = "sample") -> list[list[list[int]]]:
        walks.clear()
        run(tmp_path / folder, optimizer=STILL, walk={"select": select}, engine=FROZEN | {"seed": seed})
        return [prediction.walk.levels[1].cells.tolist() for _, prediction in walks]

    assert cells("1", 0) == cells("2", 0) != cells("3", 1)
    assert cells("4", 0, "top_k") != cells("5", 0)


def test_a_whole_image_learns_by_cross_entropy_alone(tmp_path: Path) -> None:
    plan = tiny_plan(objective={"combined": 1.0}, walk={"location_dropout": 0.5, "samples": 3, "select": "sample"})
    learner = tiny_learner(plan, model=tiny_model(whole_image=True))
    fit(learner, tmp_path)
    rows = [row for row in rows_of(tmp_path) if row["loss"]]
    assert len(rows) == 8
    assert all(row["loss"] == row["cross_entropy"] for row in rows)
    assert {row["baseline"] for row in rows} == {"0.5"}


def test_training_teaches(tmp_path: Path) -> None:
    """Where the bright corner is: chance is a quarter."""
    plan = tiny_plan(
        schedule={"epochs": 12, "batch": 16, "drops": ()},
        optimizer={"lr": 3e-3},
        engine={"workers": 0, "log_every": 10},
    )
    learner = tiny_learner(plan, train=Corners(64), validation=Corners(40, seed=1))
    assert fit(learner, tmp_path).best > 0.6


def test_a_warm_start_comes_before_training_and_counts_as_such(tmp_path: Path) -> None:
    plan = tiny_plan(
        schedule={"epochs": 1, "batch": 4},
        optimizer={"lr": 1e-30},
        teaching={"warm_start": 8},
        engine={"norms": "frozen", "log_every": 1},
    )
    learner = tiny_learner(plan)
    before = copy.deepcopy(learner.model.state_dict())
    told: list[str] = []
    fit(learner, tmp_path, watch=lambda subject, doing: told.append(f"{doing} {subject.steps_done}"))
    assert told[:3] == ["looking at cells 0", "looking at cells 0", "training 1"]
    changed = {
        name.split(".")[0]
        for name, value in learner.model.state_dict().items()
        if not torch.allclose(value.float(), before[name].float()) and name != "reward_baseline"
    }
    assert changed == {"position", "classifier", "weigh"}
    again = tiny_learner(plan)
    fit(again, tmp_path / "again")
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), learner.model.parameters(), strict=True))


# --- what is random --------------------------------------------------------------------------------------


def test_location_dropout_opens_fewer_cells_in_some_steps(tmp_path: Path, walks: list[Call]) -> None:
    walk = {"locations": (3, 1), "location_dropout": 0.6}
    run(tmp_path / "1", schedule={"epochs": 12, "accumulate": 2}, walk=walk, optimizer=STILL)
    opened = [locations for locations, _ in walks]
    assert set(opened) == {(3, 1), (2, 1), (1, 1), ()}
    assert opened[::2] == opened[1::2]  # both passes of a step
    share = opened.count((3, 1)) / len(opened)
    assert 0.2 < share < 0.65
    assert all(prediction.walk.levels[0].cells.shape[0] == 2 for _, prediction in walks)


@pytest.mark.parametrize(("dropout", "expected"), [(0.0, {(2,)}), (1.0, {(1,), ()})])
def test_location_dropout_at_its_ends(dropout: float, expected: set[Any], tmp_path: Path, walks: list[Call]) -> None:
    run(tmp_path, schedule={"epochs": 4}, walk={"location_dropout": dropout}, optimizer=STILL)
    assert {locations for locations, _ in walks} == expected


def test_location_dropout_does_not_depend_on_the_process() -> None:
    learner = tiny_learner(tiny_plan(walk={"location_dropout": 0.5}))

    def drawn(rank: int) -> list[tuple[int, ...]]:
        learner.__class__ = type("Elsewhere", (Learner,), {"global_rank": rank})
        found = []
        for learner.batches_done in range(20):
            found.append(learner._drawn_locations())
        return found

    assert drawn(0) == drawn(1)
    assert len(set(drawn(0))) == 3


class Blocks:
    """Notes which images stochastic depth left out, in each pass through the backbone."""

    def __init__(self, model: Model) -> None:
        self.masks: list[Tensor] = []
        for part in model.modules():
            if type(part).__name__ == "DropPath" and getattr(part, "drop_prob", 0):
                part.register_forward_hook(self.note)

    def note(self, _part: nn.Module, given: tuple[Tensor], result: Tensor) -> None:
        self.masks.append((result.flatten(1) == 0).all(1) & (given[0].flatten(1) != 0).any(1))


@pytest.mark.parametrize("name", ["stochastic_depth", "dropout"])
def test_each_level_drops_by_itself_and_each_step_the_same_again(name: str, tmp_path: Path) -> None:
    def masks(folder: str, seed: int) -> list[list[bool]]:
        model = tiny_model(**{name: 0.6}, backbone="test_byobnet", locations=(1,))
        seen: list[Tensor] = []
        if name == "stochastic_depth":
            seen = Blocks(model).masks
        else:
            model.classifier[0].register_forward_hook(lambda _m, _i, out: seen.append((out == 0).flatten(0, -2)))
        plan = tiny_plan(engine={"workers": 0, "seed": seed}, optimizer=STILL, schedule={"epochs": 1})
        learner = tiny_learner(plan, model=model)
        learner.data = TrainingData(train=learner.data.train, prepare=learner.data.prepare)
        fit(learner, tmp_path / folder)
        return [mask.flatten().tolist() for mask in seen]

    first = masks("1", 0)
    each = len(first) // 4  # masks of each of four steps
    assert first == masks("2", 0)
    assert first != masks("3", 1)
    steps = [first[each * step : each * (step + 1)] for step in range(4)]
    assert len({str(step) for step in steps}) == 4
    # The whole image and its one opened cell are passed one after the other: as many masks, but others.
    levels = [(step[: each // 2], step[each // 2 :]) if name != "dropout" else (step[1], step[2]) for step in steps]
    assert any(one != other for one, other in levels)
    assert any(any(map(any, one)) if name != "dropout" else any(one) for one, _ in levels)


# --- norms, precision, clipping --------------------------------------------------------------------------


@pytest.mark.parametrize("norms", ["learned", "frozen"])
def test_frozen_norms_keep_their_statistics(norms: str, tmp_path: Path) -> None:
    model = tiny_model()
    before = {name: value.clone() for name, value in model.state_dict().items() if "running" in name}
    run(tmp_path, model, engine=FROZEN | {"norms": norms})
    after = model.state_dict()
    same = [torch.equal(after[name], value) for name, value in before.items()]
    assert same
    assert all(same) if norms == "frozen" else not any(same)


def test_norms_see_each_level_by_itself(tmp_path: Path) -> None:
    """Two passes a step, of 4 images and of their 8 cells: the statistics move twice."""
    model = tiny_model()
    norm = next(part for part in model.modules() if isinstance(part, nn.BatchNorm2d))
    means: list[Tensor] = []
    norm.register_forward_hook(
        lambda part, given, _: means.append(given[0].mean((0, 2, 3))) if part.training else None
    )
    start = norm.running_mean.clone()
    run(tmp_path, model, engine={"workers": 0}, optimizer=STILL, schedule={"epochs": 0.25})
    for mean in means[:2]:  # what follows is validation, which moves nothing
        start = (1 - norm.momentum) * start + norm.momentum * mean
    torch.testing.assert_close(norm.running_mean, start)


def test_a_model_that_comes_for_inference_is_trained(tmp_path: Path) -> None:
    model = tiny_model(dropout=0.5)
    trained, losses = run(tmp_path / "1", model.eval())
    _, same = run(tmp_path / "2", tiny_model(dropout=0.5).train())
    assert losses == same
    assert trained is model


def test_half_precision_is_close_to_single(tmp_path: Path) -> None:
    _, single = run(tmp_path / "1", optimizer=STILL)
    model, half = run(tmp_path / "2", optimizer=STILL, engine=FROZEN | {"precision": "bf16"})
    assert half != single
    assert half == pytest.approx(single, rel=0.05)
    assert {value.dtype for value in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("clip", [0.0, 1e-3])
def test_gradients_are_clipped_if_that_is_asked_for(clip: float, tmp_path: Path, monkeypatch: Any) -> None:
    norms = []
    step = torch.optim.Adam.step

    def spy(self: torch.optim.Adam, *args: Any, **options: Any) -> Any:
        result = step(self, *args, **options)  # the closure computes the gradients
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norms.append(float(torch.linalg.vector_norm(torch.cat([grad.flatten() for grad in grads]))))
        return result

    monkeypatch.setattr(torch.optim.Adam, "step", spy)
    run(tmp_path, optimizer={"clip": clip}, schedule={"epochs": 0.5})
    assert len(norms) == 2
    assert norms == pytest.approx([1e-3] * 2, rel=1e-2) if clip else min(norms) > 0.1


# --- the schedule and the log ----------------------------------------------------------------------------


def test_rates_of_both_groups_follow_the_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = []
    learner = tiny_learner(tiny_plan(schedule={"epochs": 2.5, "drops": (0.8,)}, optimizer={"backbone_lr": 1e-5}))
    step = learner.training_step

    def spy(*args: Any) -> Any:
        rates.append([group["lr"] for group in learner.trainer.optimizers[0].param_groups])
        return step(*args)

    monkeypatch.setattr(learner, "training_step", spy)
    fit(learner, tmp_path)
    # Step 8 is the boundary of ten and still has the old rate.
    assert rates == [pytest.approx([1e-3, 1e-5])] * 9 + [pytest.approx([1e-4, 1e-6])]
    assert losses_of(tmp_path, "lr") == pytest.approx([1e-3] * 9 + [1e-4])


def test_a_row_is_the_mean_since_the_last_one(tmp_path: Path) -> None:
    plan = {"schedule": {"epochs": 1.75, "accumulate": 2}}
    run(tmp_path / "1", engine=FROZEN | {"log_every": 1}, **plan)
    run(tmp_path / "3", engine=FROZEN | {"log_every": 3}, **plan)
    losses = losses_of(tmp_path / "1")
    assert len(losses) == 7
    rows = [row for row in rows_of(tmp_path / "3") if row["loss"]]
    assert [int(row["step"]) for row in rows] == [3, 6, 7]  # and at the end
    means = [sum(losses[:3]) / 3, sum(losses[3:6]) / 3, losses[6]]
    assert [float(row["loss"]) for row in rows] == pytest.approx(means)


def test_timetables() -> None:
    plan = tiny_plan(schedule={"batch": 4, "epochs": 2.5}, engine={"save_every": 4, "validate_every": 2})
    table = Timetable.of(plan, 23)  # 5 steps an epoch
    assert (table.steps, table.period, table.round) == (12, 10, 4)
    assert [table.next_round(step) for step in (0, 4, 8, 10, 12)] == [
        range(4), range(4, 8), range(8, 10), range(10, 12), range(12, 12)
    ]  # fmt: skip
    assert [table.progress(step, 1e9) for step in (0, 3, 12, 13)] == [0, 0.25, 1, 1]
    by_time = Timetable.of(tiny_plan(schedule={"batch": 4, "minutes": 2}), 23)
    assert [by_time.progress(10**9, seconds) for seconds in (0, 30, 120, 130)] == [0, 0.25, 1, 1]
    assert by_time.next_round(4) == range(4, 5)


# --- validation ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 4])
def test_validation_finds_what_the_model_gives(classes: int, tmp_path: Path) -> None:
    class Folded(Corners):
        def __getitem__(self, index: int) -> Any:
            example = super().__getitem__(index)
            return type(example)(example.image, example.label % classes, example.boxes)

    data = Folded(7, seed=1)
    model = tiny_model(num_classes=classes)
    learner = tiny_learner(tiny_plan(walk={"locations": (1,)}), model=model, train=Folded(16), validation=data)
    fit(learner, tmp_path)
    images = torch.stack([Resized((48, 48))(data[i], torch.Generator()) for i in range(7)])
    labels = torch.tensor([data[i].label for i in range(7)])
    with torch.no_grad():
        logits = model.eval()(images, (1,)).logits
    row = rows_of(tmp_path)[-1]
    assert float(row["validation_loss"]) == pytest.approx(
        float(nn.functional.cross_entropy(logits, labels)), rel=1e-4
    )
    assert float(row["validation_accuracy"]) == pytest.approx(float((logits.argmax(1) == labels).float().mean()))
    if classes == 2:
        scores = logits[:, 1] - logits[:, 0]
        pairs = [(a, b) for a in scores[labels == 1] for b in scores[labels == 0]]
        expected = sum(float(a > b) + 0.5 * float(a == b) for a, b in pairs) / len(pairs)
        assert float(row["validation_auc"]) == pytest.approx(expected)
    else:
        assert "validation_auc" not in row


def test_the_area_under_the_curve_is_of_two_classes() -> None:
    with pytest.raises(ValueError, match=r"monitor must be one of .*accuracy.*, got 'auc'"):
        tiny_learner(tiny_plan(engine={"monitor": "auc"}))


# --- what is refused -------------------------------------------------------------------------------------


def test_a_batch_must_fit_into_the_data() -> None:
    with pytest.raises(ValueError, match="batch must be at most the number of training images, got 32 and 16"):
        tiny_learner(tiny_plan(schedule={"batch": 32}))


def test_locations_must_fit_the_grid() -> None:
    with pytest.raises(ValueError, match="locations must be whole numbers from 0 to the grid's 4 cells, got"):
        tiny_learner(tiny_plan(walk={"locations": (5,)}))


@pytest.mark.parametrize(
    ("options", "values", "message"),
    [
        (WalkOptions, {"location_dropout": 1.5}, r"location_dropout must be in \[0, 1\], got 1.5"),
        (WalkOptions, {"select": "best"}, "select must be 'top_k' or 'sample', got 'best'"),
        (WalkOptions, {"samples": 0}, "samples must be at least 1, got 0"),
        (EngineOptions, {"save_every": 0}, "save_every must be at least 1, got 0"),
        (EngineOptions, {"unread": -1}, "unread must not be negative, got -1"),
        (EngineOptions, {"precision": "8"}, "precision must be one of 32, bf16, 16, got '8'"),
        (EngineOptions, {"norms": "gone"}, "norms must be one of learned, frozen, got 'gone'"),
        (EngineOptions, {"monitor": "luck"}, "monitor must be one of accuracy, auc, loss, got 'luck'"),
    ],
)
def test_plans_that_make_no_sense_are_refused(options: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        options(**values)
