"""Adam's groups, the official L2 term, and the schedules against TensorFlow's rule."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from foveate.objectives import weight_decay
from foveate.optimisation import (
    OptimizerOptions,
    ScheduleOptions,
    build_optimizer,
    decayed_parameters,
    split_parameters,
)
from tests.tiny import tiny_model


def names(model: nn.Module, parameters: list[Any]) -> set[str]:
    return {name for name, value in model.named_parameters() if any(value is p for p in parameters)}


@pytest.mark.parametrize(("whole_image", "part"), [(False, "backbone."), (True, "network.")])
def test_what_begins_anew_is_told_from_the_backbone(whole_image: bool, part: str) -> None:
    model = tiny_model(whole_image=whole_image)
    new, backbone = split_parameters(model)
    assert names(model, backbone) == {name for name, _ in model.named_parameters() if name.startswith(part)}
    assert names(model, new) == {name for name, _ in model.named_parameters() if not name.startswith(part)}
    assert len(new) + len(backbone) == len(list(model.parameters()))
    assert "classifier.1.weight" in names(model, new)


def test_parameters_that_do_not_learn_are_in_no_group() -> None:
    model = tiny_model()
    model.backbone.requires_grad_(False)
    assert [len(group["params"]) for group in build_optimizer(model, OptimizerOptions()).param_groups] == [
        len(split_parameters(model)[0])
    ]


@pytest.mark.parametrize(("backbone_lr", "rates"), [(None, [1e-3, 1e-3]), (1e-5, [1e-3, 1e-5])])
def test_each_group_knows_the_rate_it_began_with(backbone_lr: float | None, rates: list[float]) -> None:
    options = OptimizerOptions(backbone_lr=backbone_lr, betas=(0.8, 0.99), epsilon=1e-7)
    optimizer = build_optimizer(tiny_model(), options)
    assert type(optimizer) is torch.optim.Adam
    assert [group["lr"] for group in optimizer.param_groups] == rates
    assert [group["initial_lr"] for group in optimizer.param_groups] == rates
    for group in optimizer.param_groups:
        assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.8, 0.99), 1e-7, 0)


def test_decoupled_decay_is_adamw() -> None:
    optimizer = build_optimizer(tiny_model(), OptimizerOptions(decoupled=0.05))
    assert type(optimizer) is torch.optim.AdamW
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.05}


@pytest.mark.gradients
def test_one_step_is_adams_first_step() -> None:
    """The first step of Adam is lr * g / (|g| + eps), whatever the betas."""
    model = tiny_model()
    options = OptimizerOptions(lr=0.1, backbone_lr=0.01, epsilon=1.0)
    optimizer = build_optimizer(model, options)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    for value in model.parameters():
        value.grad = torch.full_like(value, 3.0)
    optimizer.step()
    for name, value in model.named_parameters():
        lr = 0.01 if name.startswith("backbone.") else 0.1
        torch.testing.assert_close(value.detach(), before[name] - lr * 3 / (3 + 1))


@pytest.mark.parametrize("which", ["all", "new"])
def test_the_official_decay_leaves_out_norms_and_nothing_else(which: Any) -> None:
    model = tiny_model()
    norms = {
        f"{name}.{kind}"
        for name, part in model.named_modules()
        if isinstance(part, nn.BatchNorm2d)
        for kind in ("weight", "bias")
    }
    wanted = {name for name, _ in model.named_parameters()} - norms
    if which == "new":
        wanted = {name for name in wanted if not name.startswith("backbone.")}
    found = decayed_parameters(model, which)
    assert norms
    assert names(model, found) == wanted
    assert "classifier.1.bias" in wanted
    # l2 * 2 * sum(v ** 2) / 2, as the official program has it
    by_name = dict(model.named_parameters())
    expected = sum(1e-4 * 2 * float(by_name[name].double().square().sum()) / 2 for name in wanted)
    assert float(weight_decay(found, 1e-4)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "norm", [nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.BatchNorm1d(4), nn.InstanceNorm2d(4, affine=True)]
)
def test_all_kinds_of_norms_are_left_out(norm: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 4), norm)
    assert names(model, decayed_parameters(model, "all")) == {"0.weight", "0.bias"}


def piecewise_constant_decay(iteration: int, boundaries: list[int], values: list[float]) -> float:
    """TensorFlow's rule, from its documentation: the old value up to and including a boundary."""
    for boundary, value in zip(boundaries, values, strict=False):
        if iteration <= boundary:
            return value
    return values[-1]


@pytest.mark.parametrize("drops", [(0.8,), (0.9,), (0.75, 0.875)])
def test_the_step_schedule_is_tensorflows(drops: tuple[float, ...]) -> None:
    """0.8 and 0.9 are the published shares."""
    schedule = ScheduleOptions(epochs=1, drops=drops)
    values = [0.1**power for power in range(len(drops) + 1)]
    for steps in [*range(1, 200), 999, 1000, 12345]:
        boundaries = [int(share * steps) for share in drops]
        for step in {*range(min(steps, 200)), *boundaries, *(b + 1 for b in boundaries), steps - 1}:
            rate = schedule.rate(min(step, steps - 1) / steps)
            expected = piecewise_constant_decay(min(step, steps - 1), boundaries, values)
            assert rate == pytest.approx(expected), (steps, step)


def test_the_factor_is_that_of_each_drop() -> None:
    schedule = ScheduleOptions(epochs=1, drops=(0.5, 0.75), factor=0.5)
    assert [schedule.rate(progress) for progress in (0, 0.5, 0.51, 0.75, 0.76, 1)] == [1, 1, 0.5, 0.5, 0.25, 0.25]


@pytest.mark.parametrize("shape", ["step", "cosine"])
def test_warm_up_is_linear(shape: Any) -> None:
    schedule = ScheduleOptions(epochs=1, shape=shape, warmup=0.2)
    assert [schedule.rate(progress) for progress in (0, 0.05, 0.1, 0.2)] == pytest.approx([0, 0.25, 0.5, 1])


@pytest.mark.parametrize("warmup", [0.0, 0.2])
def test_the_cosine_falls_from_one_to_nothing(warmup: float) -> None:
    schedule = ScheduleOptions(epochs=1, shape="cosine", warmup=warmup)
    for share in (0, 0.25, 0.5, 1):
        expected = math.cos(math.pi / 2 * share) ** 2
        assert schedule.rate(warmup + share * (1 - warmup)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "schedule must have either epochs or minutes, got None and None"),
        ({"epochs": 1, "minutes": 1}, "schedule must have either epochs or minutes, got 1 and 1"),
        ({"epochs": -1}, "schedule must be longer than nothing, got -1"),
        ({"minutes": 0}, "schedule must be longer than nothing, got 0"),
        ({"epochs": 1, "batch": 6, "accumulate": 4}, "batch must be a multiple of accumulate, got 6 and 4"),
        ({"epochs": 1, "shape": "line"}, "shape must be 'step' or 'cosine', got 'line'"),
        ({"epochs": 1, "drops": (1.5,)}, "drops and warmup must be shares of the whole"),
        ({"epochs": 1, "warmup": 1.0}, "drops and warmup must be shares of the whole"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScheduleOptions(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0}, "lr must be positive, got lr 0 and backbone_lr None"),
        ({"backbone_lr": -1}, "lr must be positive, got lr 0.001 and backbone_lr -1"),
        ({"clip": -1}, "clip must not be negative, got -1"),
        ({"weight_decay": -1}, "weight_decay must not be negative, got -1"),
        ({"decayed": "some"}, "decayed must be 'all' or 'new', got 'some'"),
    ],
)
def test_optimisers_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OptimizerOptions(**options)
