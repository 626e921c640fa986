from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from foveate import create_model
from foveate.checkpoints import tensorflow_names
from foveate.glimpses import ReadingCost
from foveate.models import TNet
from foveate.objectives import (
    LearningRule,
    contrastive,
    correct,
    feature_cross_entropy,
    learn,
    move_baseline,
    reinforce,
    surest,
    weight_decay,
)
from foveate.selection import sample, sequence_log_probability
from foveate.traversal import Level, Prediction, Walk
from tests.official import GOLDEN, assert_close, fill, images

# What the published CUB program decays: the modules of its first optimiser.
DECAYED = ("logits_layer", "feat_weighting", "feature_posBurn", "location_prediction")

pytestmark = pytest.mark.gradients


@pytest.mark.parametrize(
    ("file", "name", "classes", "side", "seed"),
    [
        ("cub_tnet_b0_5loc", "tnet_b0", 200, 448, 1015),
        ("fmow_tnet_448_2loc", "tnet_fmow", 62, 448, 1013),
        ("imagenet_tnet_3loc", "tnet_imagenet", 1000, 224, 1011),
    ],
)
def test_a_training_step_equals_the_official_programs(
    file: str, name: str, classes: int, side: int, seed: int
) -> None:
    with np.load(GOLDEN / f"{file}_train.npz", allow_pickle=False) as stored:
        wanted = dict(stored)
    given = json.loads(str(wanted["hp"]))
    options = LearningRule(
        combined=given["lambda_c"],
        sequence=given["lambda_r"],
        reinforcement=given["lambda_f"],
        cap=given["perFReg_cap"],
        contrastive=given["l_contrastive"],
        margin=given["contrastive_margin"] or 0.4,
    )
    model = fill(create_model(name, num_classes=classes)).train()
    assert isinstance(model, TNet)
    labels = torch.from_numpy(wanted["labels"]).long()
    prediction = model(images(4, side, seed), locations=tuple(int(k) for k in given["loc_per_grid"]))
    learning = learn(prediction, labels, model.reward_baseline, options)

    assert_close(prediction.logits, torch.from_numpy(wanted["logits"]), 1e-5)
    for depth, level in enumerate(prediction.walk.levels):
        assert level.logits is not None
        assert_close(level.logits.flatten(0, 1), torch.from_numpy(wanted[f"logits_per_feature_{depth}"]), 1e-5)
    attended = prediction.walk.levels[1]
    assert attended.log_probability is not None
    torch.testing.assert_close(
        attended.log_probability, torch.from_numpy(wanted["location_log_probs"]), rtol=1e-5, atol=0
    )
    if "features_prime" in wanted:
        assert_close(prediction.combined, torch.from_numpy(wanted["features_prime"]), 1e-5)
    names = {
        "cross_entropy": "term_cross_entropy",
        "reinforce": "term_reinforce",
        "feature_cross_entropy": "term_cross_entropy_per_feature",
        "feature_reinforce": "term_reinforce_per_feature",
        "contrastive": "contrastive",
    }
    for term, value in learning.terms.items():
        assert value.item() == pytest.approx(float(wanted[names[term]]), rel=1e-5)
    assert learning.mean_reward.item() == pytest.approx(float(wanted["baseline_step"]), rel=1e-6)
    moved = move_baseline(model.reward_baseline, learning.mean_reward)
    assert moved.item() == pytest.approx(float(wanted["baseline_after"]), rel=1e-6)

    official = tensorflow_names(model)
    parameters = {official[key]: value for key, value in model.named_parameters()}
    loss = learning.loss
    if given["l2_reg"]:
        chosen = [v for k, v in parameters.items() if any(part in k for part in DECAYED) and "batch_norm" not in k]
        decay = weight_decay(chosen, given["l2_reg"])
        assert decay.item() == pytest.approx(float(wanted["term_l2"]), rel=1e-5)
        loss = loss + decay
    assert loss.item() == pytest.approx(float(wanted["total_loss"]), rel=1e-5)
    loss.backward()
    norms = {key: value.grad.double().norm().item() for key, value in parameters.items() if value.grad is not None}
    assert set(norms) == {str(key) for key in wanted["grad_names"]}
    largest = float(wanted["grad_norms"].max())
    for key, norm in zip(wanted["grad_names"], wanted["grad_norms"], strict=True):
        # A shift in front of a batch norm has no gradient but rounding: hence the floor.
        assert norms[str(key)] == pytest.approx(norm, rel=1e-4, abs=1e-6 * largest), key
    moving = {official[key]: value.double().mean().item() for key, value in model.named_buffers() if key in official}
    for key, mean in zip(wanted["bn_moving_names"], wanted["bn_moving_after_mean"], strict=True):
        assert moving[str(key)] == pytest.approx(mean, rel=1e-5, abs=1e-8), key


def made_up(batch: int, fanouts: tuple[int, ...], classes: int = 3, cells: int = 5) -> Prediction:
    """A prediction with random contents, and gradients."""
    levels, count = [], 1
    for depth, fanout in enumerate((1, *fanouts)):
        parents, count = count, count * fanout
        probabilities = torch.softmax(torch.randn(batch, parents, cells, requires_grad=True), -1) if depth else None
        chosen = torch.stack([torch.randperm(cells)[:fanout].sort().values for _ in range(batch * parents)]) % cells
        chosen = chosen.view(batch, parents, fanout)
        levels.append(
            Level(
                boxes=torch.zeros(batch, count, 4),
                cells=chosen.flatten(1),
                positions=torch.zeros(batch, count, 3),
                features=torch.randn(batch, count, 4),
                encoded=torch.randn(batch, count, 4),
                probabilities=probabilities,
                log_probability=None if probabilities is None else probabilities.gather(2, chosen).log().sum(2),
                logits=torch.randn(batch, count, classes, requires_grad=True),
            )
        )
    walk = Walk(levels=tuple(levels), weights=torch.full((batch, 1), 1.0), cost=ReadingCost())
    return Prediction(
        logits=torch.randn(batch, classes, requires_grad=True), walk=walk, combined=torch.randn(batch, 4)
    )


def by_the_letter(prediction: Prediction, labels: Tensor, baseline: float, options: LearningRule) -> dict[str, float]:
    """Eq. 3, 3a and 3b with loops, and section 4 of the reference for the published program."""
    batch, levels = len(labels), prediction.walk.levels
    found = dict.fromkeys(("cross_entropy", "reinforce", "feature_cross_entropy", "feature_reinforce"), 0.0)
    cap = options.cap or len(levels)
    attended = sum(level.cells.shape[1] for level in levels[1:cap])
    counted = attended + 1 if options.rule == "official" else attended
    for i in range(batch):
        log_p = prediction.logits[i].log_softmax(0)
        reward = float(log_p.argmax() == labels[i])
        found["cross_entropy"] -= options.combined * log_p[labels[i]].item() / batch
        for depth, level in enumerate(levels):
            per_parent = level.cells.shape[1] // (1 if level.probabilities is None else level.probabilities.shape[1])
            for k in range(level.cells.shape[1]):
                alone = level.logits[i, k].log_softmax(0)
                if depth < cap and (depth > 0 or options.rule == "official"):
                    term = (1 - options.combined) * alone[labels[i]].item() / (counted * batch)
                    found["feature_cross_entropy"] -= term
                if depth == 0:
                    continue
                chance = level.probabilities[i, k // per_parent, level.cells[i, k]].log().item()
                weight = options.reinforcement * options.sequence / batch
                found["reinforce"] -= weight * (reward - baseline) * chance
                if depth < cap:
                    right = float(alone.argmax() == labels[i])
                    weight = options.reinforcement * (1 - options.sequence) / (attended * batch)
                    found["feature_reinforce"] -= weight * (right - baseline) * chance
    return found


@pytest.mark.parametrize("rule", ["paper", "official"])
@pytest.mark.parametrize(("fanouts", "cap"), [((3,), None), ((2, 1), None), ((2, 2), 2), ((2, 1), 3)])
def test_terms_are_the_equations(rule: str, fanouts: tuple[int, ...], cap: int | None) -> None:
    prediction, labels = made_up(4, fanouts), torch.tensor([0, 2, 1, 1])
    options = LearningRule(rule=rule, combined=0.3, sequence=0.2, reinforcement=0.1, cap=cap)
    learning = learn(prediction, labels, torch.tensor(0.4), options)
    wanted = by_the_letter(prediction, labels, 0.4, options)
    assert set(learning.terms) == set(wanted)
    for name, value in wanted.items():
        assert learning.terms[name].item() == pytest.approx(value, rel=1e-5), name
    assert learning.loss.item() == pytest.approx(sum(wanted.values()), rel=1e-5)


def test_the_two_rules_follow_different_rewards() -> None:
    prediction, labels = made_up(8, (3,)), torch.randint(0, 3, (8,))
    options = LearningRule(rule="paper", sequence=0.25)
    whole = correct(prediction.logits, labels).mean()
    each = correct(prediction.walk.levels[1].logits, labels).mean()
    assert learn(prediction, labels, torch.tensor(0.5), options).mean_reward == whole
    mixed = learn(prediction, labels, torch.tensor(0.5), replace(options, rule="official")).mean_reward
    torch.testing.assert_close(mixed, 0.25 * whole + 0.75 * each)


@pytest.mark.parametrize("rule", ["paper", "official"])
def test_monte_carlo_samples_are_averaged(rule: str) -> None:
    """The published code divides by N where Eq. 1 divides by N * M: here repeating a batch changes nothing."""
    prediction, labels = made_up(3, (2,)), torch.tensor([0, 1, 2])
    twice = Prediction(
        logits=prediction.logits.repeat(2, 1),
        combined=prediction.combined.repeat(2, 1),
        walk=replace(
            prediction.walk,
            levels=tuple(
                Level(
                    **{
                        n: (v if (v := getattr(level, n)) is None else v.repeat(2, *[1] * (v.ndim - 1)))
                        for n in level.__slots__
                    }
                )
                for level in prediction.walk.levels
            ),
        ),
    )
    options = LearningRule(rule=rule, contrastive=1.0)
    once, again = (
        learn(p, y, torch.tensor(0.5), options) for p, y in ((prediction, labels), (twice, labels.repeat(2)))
    )
    for name in ("cross_entropy", "reinforce", "feature_cross_entropy", "feature_reinforce"):
        torch.testing.assert_close(again.terms[name], once.terms[name])
    torch.testing.assert_close(again.mean_reward, once.mean_reward)


def test_without_locations_only_classification_is_left() -> None:
    prediction, labels = made_up(2, ()), torch.tensor([0, 1])
    assert set(learn(prediction, labels, torch.tensor(0.5), LearningRule(rule="paper")).terms) == {"cross_entropy"}
    terms = learn(prediction, labels, torch.tensor(0.5), LearningRule(rule="official")).terms
    assert set(terms) == {"cross_entropy", "feature_cross_entropy"}


def test_level_weights_move_the_per_feature_term_between_levels() -> None:
    prediction, labels = made_up(4, (3,)), torch.tensor([0, 1, 2, 0])
    first, second = prediction.walk.levels
    only_first = learn(prediction, labels, torch.tensor(0.5), LearningRule(combined=0, level_weights=(1, 0)))
    wanted = torch.nn.functional.cross_entropy(first.logits[:, 0], labels)
    torch.testing.assert_close(only_first.terms["feature_cross_entropy"], wanted)
    alike = learn(prediction, labels, torch.tensor(0.5), LearningRule(combined=0, level_weights=(2, 2)))
    usual = learn(prediction, labels, torch.tensor(0.5), LearningRule(combined=0))
    torch.testing.assert_close(alike.terms["feature_cross_entropy"], usual.terms["feature_cross_entropy"])
    assert second.logits is not None
    with pytest.raises(ValueError, match="a weight for each of 2 levels"):
        learn(prediction, labels, torch.tensor(0.5), LearningRule(level_weights=(1,)))


def test_the_surest_of_a_level_speak_for_their_classes() -> None:
    """By hand, for two features and two classes: of each class the larger log probability is heard."""
    p = torch.tensor([[[0.9, 0.1], [0.4, 0.6]], [[0.7, 0.3], [0.8, 0.2]]])  # (B, K, classes)
    labels = torch.tensor([1, 0])
    spoken = torch.tensor([[0.9, 0.6], [0.8, 0.3]])
    expected = -(spoken[range(2), labels] / spoken.sum(1)).log().mean()
    torch.testing.assert_close(F.cross_entropy(surest(p.log()), labels), expected)
    level = Level(
        boxes=torch.zeros(2, 2, 4),
        cells=torch.zeros(2, 2, dtype=torch.long),
        positions=torch.zeros(2, 2, 3, dtype=torch.long),
        features=torch.zeros(2, 2, 1),
        encoded=torch.zeros(2, 2, 1),
        logits=p.log(),
    )
    # A level counts as much as if every one of its features had spoken.
    torch.testing.assert_close(feature_cross_entropy([level], labels, [0.5], "surest"), expected)
    every = -p.log().gather(2, labels.view(2, 1, 1).expand(2, 2, 1)).mean()
    torch.testing.assert_close(feature_cross_entropy([level], labels, [0.5], "every"), every)


def test_reinforcement_by_sampling_estimates_the_exact_gradient() -> None:
    """Eq. 1 with Eq. 7 on a grid of 4 cells: against the expectation over all ordered draws, by enumeration."""
    logits = torch.tensor([0.3, -0.2, 0.5, 0.0], dtype=torch.float64, requires_grad=True)
    rewards = {frozenset(pair): float(sum(pair) % 3 == 0) for pair in itertools.combinations(range(4), 2)}
    sequences = torch.tensor(list(itertools.permutations(range(4), 2)))
    p = torch.softmax(logits, 0).expand(len(sequences), -1)
    chance = sequence_log_probability(p, sequences).exp()
    earned = torch.tensor([rewards[frozenset(pair.tolist())] for pair in sequences], dtype=torch.float64)
    (wanted,) = torch.autograd.grad((chance * earned).sum(), logits)

    draws = 200_000
    choice = sample(torch.softmax(logits, 0).expand(draws, -1), 2, generator=torch.Generator().manual_seed(0))
    table = torch.zeros(4, 4, dtype=torch.float64)
    for pair, reward in rewards.items():
        table[tuple(sorted(pair))] = reward
    reward = table[choice.cells[:, 0], choice.cells[:, 1]]
    (got,) = torch.autograd.grad(-reinforce(choice.log_probability, reward, reward.mean()), logits)
    torch.testing.assert_close(got, wanted, atol=0.005, rtol=0)
    assert wanted.abs().max() > 0.04


def test_ties_count_as_correct() -> None:
    assert correct(torch.tensor([[1.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0])).tolist() == [1, 0]
    assert correct(torch.zeros(1, 2, 3), torch.tensor([2])).tolist() == [[1, 1]]


def test_contrastive_is_eq_9_by_hand() -> None:
    features = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    labels = torch.tensor([0, 0, 1])
    half = 0.5**0.5
    pairs = 2 * (1 - half) + 2 * 0 + 2 * (half - 0.4)  # (0, 1); (0, 2); (1, 2); the diagonal is 0
    assert contrastive(features, labels, 0.4).item() == pytest.approx(pairs / 9, rel=1e-5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rule": "other"}, "rule must be one of"),
        ({"combined": 1.5}, r"combined must be in \[0, 1\], got 1.5"),
        ({"reinforcement": -1}, "must not be negative"),
        ({"cap": 0}, "cap must be at least 1 level"),
    ],
)
def test_impossible_rules_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LearningRule(**wrong)


def test_predictions_without_own_logits_are_refused() -> None:
    prediction = made_up(2, (1,))
    levels = tuple(replace(level, logits=None) for level in prediction.walk.levels)
    with pytest.raises(ValueError, match="which models give in training"):
        learn(
            replace(prediction, walk=replace(prediction.walk, levels=levels)),
            torch.tensor([0, 1]),
            torch.tensor(0.5),
            LearningRule(),
        )
