from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foveate.layers import policy
from foveate.models import TNet
from foveate.selection import top_k
from foveate.sources import ImageSource, as_sources
from foveate.teaching import TeachingOptions, evidence, first_logits, guided_by, scan, teach, warm_start
from tests.tiny import tiny_model


@pytest.fixture
def model() -> TNet:
    made = tiny_model(dropout=0.5, stochastic_depth=0.5)
    assert isinstance(made, TNet)
    return made


@pytest.fixture
def images() -> list[ImageSource]:
    return list(as_sources(torch.rand(3, 3, 48, 64) * 2 - 1))


def test_a_scan_finds_what_a_walk_to_all_cells_finds(model: TNet, images: list[ImageSource]) -> None:
    model.eval()
    attended = model(images, locations=(model.grid.cells,)).walk.levels[1]
    assert torch.equal(attended.cells, torch.arange(4).expand(3, 4))
    torch.testing.assert_close(scan(model, images), model.classifier(attended.encoded))


@pytest.mark.gradients
def test_a_scan_leaves_no_trace(model: TNet, images: list[ImageSource]) -> None:
    """It is in the middle of training: no dropout, no statistics, no gradient, no mode may change by it."""
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [part.training for part in model.modules()]
    first, second = scan(model, images), scan(model, images)
    assert torch.equal(first, second)  # nothing was dropped
    assert not first.requires_grad
    assert [part.training for part in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(part.track_running_stats for part in model.modules() if isinstance(part, nn.BatchNorm2d))


def test_norms_that_learn_see_the_scans_own_statistics(model: TNet, images: list[ImageSource]) -> None:
    frozen = scan(model.eval(), images)
    learning = scan(model.train(), images)
    assert not torch.allclose(frozen, learning)
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.eval()
    torch.testing.assert_close(scan(model, images), frozen)


def test_evidence_by_hand() -> None:
    p = torch.tensor([[[0.5, 0.5], [0.9, 0.1]], [[0.2, 0.8], [0.4, 0.6]]])  # (B, cells, classes)
    labels = torch.tensor([1, 0])
    expected = torch.tensor([[math.log(0.5), math.log(0.1)], [math.log(0.2), math.log(0.4)]])
    torch.testing.assert_close(evidence(p.log(), labels, "label"), expected)
    usual = torch.tensor([0.5, 0.5])  # the mean over all four cells
    expected = (p * (p / usual).log()).sum(-1)
    torch.testing.assert_close(evidence(p.log(), labels, "claim"), expected)


def test_evidence_does_not_depend_on_the_scale_of_probabilities() -> None:
    logits = torch.randn(2, 4, 3)
    for kind in ("label", "claim"):
        labels = torch.tensor([0, 2])
        torch.testing.assert_close(evidence(logits + 7, labels, kind), evidence(logits, labels, kind))


def test_scanned_images_are_led_and_others_are_not() -> None:
    policy = torch.tensor([[[0.4, 0.3, 0.2, 0.1]]]).expand(2, 1, 4)
    found = torch.tensor([[0.0, 5.0, -1.0, 9.0]])
    choice = guided_by(found, top_k)(policy, 2)
    assert choice.cells.tolist() == [[[1, 3]], [[0, 1]]]
    expected = torch.tensor([[math.log(0.3 * 0.1)], [math.log(0.4 * 0.3)]])
    torch.testing.assert_close(choice.log_probability, expected)


def test_only_the_first_level_is_led() -> None:
    """With one location the second level has one region, just as the first."""
    policy = torch.tensor([[[0.4, 0.3, 0.2, 0.1]]])
    select = guided_by(torch.tensor([[0.0, 5.0, -1.0, 9.0]]), top_k)
    assert select(policy, 1).cells.tolist() == [[[3]]]
    assert select(policy, 1).cells.tolist() == [[[0]]]


@pytest.mark.gradients
def test_teaching_moves_the_policy_towards_the_order() -> None:
    logits = torch.zeros(1, 3, requires_grad=True)
    found = torch.tensor([[0.1, 0.9, 0.2]])
    target = torch.softmax(found / 0.5, -1)
    loss = teach(logits, found, 0.5)
    # All cells are equally likely, as far as the logits know.
    torch.testing.assert_close(loss.detach(), math.log(3) + (target * target.log()).sum())
    loss.backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, 1 / 3 - target)
    torch.testing.assert_close(teach(found / 0.5 + 7, found, 0.5), torch.tensor(0.0))  # the same order


@pytest.mark.gradients
@pytest.mark.parametrize("reach", [True, False])
def test_lessons_are_of_the_walks_own_policy(reach: bool, model: TNet, images: list[ImageSource]) -> None:
    model.eval()
    walked = model(images, locations=(1,)).walk.levels[1].probabilities
    assert walked is not None
    logits = first_logits(model, images, reach=reach)
    torch.testing.assert_close(policy(logits), walked[:, 0])
    parts = {"locate": list(model.locate.parameters()), "backbone": list(model.backbone.parameters())}
    touched = {
        name: any(
            grad is not None and bool(grad.abs().sum() > 0)
            for grad in torch.autograd.grad(logits[:, 0].sum(), parameters, allow_unused=True, retain_graph=True)
        )
        for name, parameters in parts.items()
    }
    assert touched == {"locate": True, "backbone": reach}


@pytest.mark.gradients
def test_a_warm_start_finds_the_cell_that_makes_the_difference() -> None:
    """Half of the images have a feature of another kind in one of four cells; which one it is nobody tells."""
    model = tiny_model(num_classes=2)
    assert isinstance(model, TNet)
    assert model.weigh is not None
    other = torch.randn(model.classifier[1].in_features)

    def bags(count: int) -> tuple[Tensor, Tensor, Tensor]:
        features, cells = torch.randn(count, 4, len(other)), torch.randint(4, (count,))
        labels = torch.arange(count) % 2
        features[torch.arange(count), cells] += labels[:, None] * other
        return features, labels, cells

    warm_start(model, *bags(512)[:2], generator=torch.Generator().manual_seed(0))
    features, labels, cells = bags(200)
    torch.testing.assert_close(model.weigh(features), torch.full((200, 4), 0.25))
    index = torch.arange(4)
    positions = torch.stack((index // 2, index % 2, torch.ones_like(index)), 1).repeat(200, 1)
    logits = model.eval().classifier(model.position(features.flatten(0, 1), positions)).unflatten(0, (200, 4))
    claims = logits.softmax(-1)[:, :, 1]
    assert float((claims.argmax(1) == cells)[labels == 1].float().mean()) > 0.95
    assert claims.amax(1)[labels == 1].median() > 0.9
    assert claims[labels == 0].median() < 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 1.5}, r"share must be in \[0, 1\], got 1.5"),
        ({"until": -1}, r"until must be in \[0, 1\], got -1"),
        ({"temperature": 0}, "temperature must be positive, got 0"),
        ({"warm_start": -2}, "warm_start must not be negative, got -2"),
        ({"weight": -1}, "weight must not be negative, got -1"),
        ({"evidence": "hearsay"}, "evidence must be one of label, claim, got 'hearsay'"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TeachingOptions(**options)
