"""(Prediction, labels) -> named loss terms: the learning rule of TNet's section 4, as pure functions.

Two conventions differ where the paper and its code do. ``paper`` is Eq. 1-3: per-feature terms are over attended
locations. ``official`` is the published program: the per-feature cross-entropy also counts the first look, its two
per-feature terms have different divisors, and the moving baseline mixes both kinds of reward.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from foveate.traversal import Level, Prediction

Rule = Literal["paper", "official"]
RULES: tuple[Rule, ...] = ("paper", "official")
Speaker = Literal["every", "surest"]
SPEAKERS: tuple[Speaker, ...] = ("every", "surest")


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningRule:
    """The weights of Eq. 3: ``combined`` is lambda_c, ``sequence`` lambda_r, ``reinforcement`` lambda_f.

    ``cap`` is the number of levels that the per-feature terms see, None for all. ``level_weights`` weigh the levels
    in the per-feature cross-entropy against each other, the whole image's first; None weighs all features alike.
    ``speaker`` says which features that term asks: ``every`` one, as Eq. 3b does, or of each class the ``surest`` one
    of a level, for images in which one small thing makes the difference and all else looks alike in all classes.
    """

    rule: Rule = "official"
    combined: float = 0.3
    sequence: float = 0.3
    reinforcement: float = 0.1
    cap: int | None = None
    level_weights: tuple[float, ...] | None = None
    speaker: Speaker = "every"
    contrastive: float = 0.0
    margin: float = 0.4

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"rule must be one of {RULES}, got {self.rule!r}")
        if self.speaker not in SPEAKERS:
            raise ValueError(f"speaker must be one of {SPEAKERS}, got {self.speaker!r}")
        for name in ("combined", "sequence"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name)}")
        for name in ("reinforcement", "contrastive"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.cap is not None and self.cap < 1:
            raise ValueError(f"cap must be at least 1 level, got {self.cap}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Learning:
    """The terms of one batch's loss, and the mean reward that the moving baseline is to follow."""

    terms: dict[str, Tensor]
    mean_reward: Tensor

    @property
    def loss(self) -> Tensor:
        """The sum of all terms."""
        return torch.stack(list(self.terms.values())).sum()


def learn(prediction: Prediction, labels: Tensor, baseline: Tensor, options: LearningRule) -> Learning:
    """The terms of Eq. 3 for a batch. Monte Carlo samples are part of the batch: every mean is over N * M."""
    levels = prediction.walk.levels
    capped = levels[: options.cap]
    attended = capped[1:]
    features = capped if options.rule == "official" else attended
    reward = correct(prediction.logits, labels)  # R^s
    terms = {"cross_entropy": options.combined * F.cross_entropy(prediction.logits, labels)}
    if len(levels) > 1:
        rule = options.reinforcement * options.sequence
        terms["reinforce"] = rule * reinforce(sequence_log_probability(levels), reward, baseline)
    if features and options.combined < 1:
        weights = level_weights(features, options)
        terms["feature_cross_entropy"] = (1 - options.combined) * feature_cross_entropy(
            features, labels, weights, options.speaker
        )
    mean_reward = reward.mean()
    if attended:
        rule = options.reinforcement * (1 - options.sequence)
        rewards = torch.cat([correct(_logits(level), labels) for level in attended], 1)  # R^k (B, K)
        log_p = torch.cat([location_log_probabilities(level) for level in attended], 1)  # (B, K)
        terms["feature_reinforce"] = rule * reinforce(log_p, rewards, baseline)
        if options.rule == "official":
            mean_reward = options.sequence * mean_reward + (1 - options.sequence) * rewards.mean()
    if options.contrastive:
        terms["contrastive"] = options.contrastive * contrastive(prediction.combined, labels, options.margin)
    return Learning(terms=terms, mean_reward=mean_reward)


def correct(logits: Tensor, labels: Tensor) -> Tensor:
    """The reward: 1 where the label's logit (..., classes) is the largest, ties included, else 0."""
    labels = labels.view(-1, *[1] * (logits.ndim - 1)).expand(*logits.shape[:-1], 1)
    return (logits.gather(-1, labels) >= logits.max(-1, keepdim=True).values).squeeze(-1).to(logits.dtype)


def reinforce(log_probability: Tensor, reward: Tensor, baseline: Tensor) -> Tensor:
    """The second term of Eq. 1: its gradient raises the probability of what was rewarded more than usual."""
    return -((reward - baseline).detach() * log_probability).mean()


def move_baseline(baseline: Tensor, mean_reward: Tensor) -> Tensor:
    """Eq. 2."""
    return 0.9 * baseline + 0.1 * mean_reward


def location_log_probabilities(level: Level) -> Tensor:
    """The log-probability of each region (B, K) in the policy that it was chosen from."""
    if level.probabilities is None:
        raise ValueError("level must have been chosen by a policy, got the first look")
    parents = level.probabilities.shape[1]
    cells = level.cells.unflatten(1, (parents, -1))  # (B, parents, fanout)
    return level.probabilities.gather(2, cells).log().flatten(1)


def sequence_log_probability(levels: Sequence[Level]) -> Tensor:
    """The log p(l^i) (B,) of all locations of all levels together, as the selection that chose them counts it."""
    parts = [level.log_probability for level in levels if level.log_probability is not None]  # (B, parents) each
    return torch.cat(parts, 1).sum(1)


def level_weights(levels: Sequence[Level], options: LearningRule) -> list[float]:
    """What one feature of each level counts, so that all features together count 1."""
    if options.level_weights is None:
        raw = [1.0] * len(levels)
    else:
        first = 0 if options.rule == "official" else 1
        raw = list(options.level_weights[first : first + len(levels)])
        if len(raw) < len(levels) or sum(raw) <= 0:
            raise ValueError(
                f"level_weights must have a weight for each of {first + len(levels)} levels, with a positive sum, "
                f"got {options.level_weights}"
            )
    total = sum(weight * level.cells.shape[1] for weight, level in zip(raw, levels, strict=True))
    return [weight / total for weight in raw]


def feature_cross_entropy(
    levels: Sequence[Level], labels: Tensor, weights: Sequence[float], speaker: Speaker = "every"
) -> Tensor:
    """The first term of Eq. 3b: every feature predicts the label by itself, or a level's surest ones do together."""
    losses = []
    for level, weight in zip(levels, weights, strict=True):
        logits = _logits(level)  # (B, K, classes)
        if speaker == "surest":
            losses.append(weight * logits.shape[1] * F.cross_entropy(surest(logits), labels))
        else:
            repeated = labels.unsqueeze(1).expand(logits.shape[:2])
            each = F.cross_entropy(logits.flatten(0, 1), repeated.flatten(), reduction="none").view_as(repeated)
            losses.append(weight * each.sum(1).mean())
    return torch.stack(losses).sum()


def surest(logits: Tensor) -> Tensor:
    """Of K predictions (B, K, classes) the one that is surest of a class speaks for it: (B, classes)."""
    return logits.log_softmax(-1).amax(1)


def contrastive(features: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Eq. 9 over all pairs of a batch (B, D): alike within a class, no more alike than ``margin`` across classes."""
    directions = F.normalize(features, dim=1)
    similarity = directions @ directions.T
    same = labels[:, None] == labels[None, :]
    return torch.where(same, 1 - similarity, (similarity - margin).clamp(min=0)).mean()


def weight_decay(parameters: Iterable[Tensor], strength: float) -> Tensor:
    """The official L2 term: ``strength`` times the sum of squares."""
    return strength * torch.stack([parameter.square().sum() for parameter in parameters]).sum()


def _logits(level: Level) -> Tensor:
    if level.logits is None:
        raise ValueError("levels must have logits of their own, which models give in training, got none")
    return level.logits
