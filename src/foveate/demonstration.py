"""A walk over the bundled picture, for ``foveate demo``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from foveate.creation import create_model
from foveate.explanation import overlay
from foveate.geometry import intersect, union_area
from foveate.readers import open_image
from foveate.sources import ImageSource
from foveate.traversal import Walk

SCENE = Path(__file__).parent / "data" / "scene.jpg"


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One glimpse of the walk: its level, region, the probability of being chosen, and how much it counted."""

    level: int
    box: tuple[float, ...]
    probability: float | None
    weight: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Demonstration:
    """What was walked, and where it is drawn; ``seen`` is the share of the picture that was opened."""

    image_size: tuple[int, int]
    steps: tuple[Step, ...]
    seen: float
    picture: Path


def demonstrate(
    folder: Path, *, image: Path | None = None, locations: Sequence[int] = (3, 2), seed: int = 0
) -> Demonstration:
    """Walks a TNet with random weights over a picture and draws the walk to ``folder/walk.png``."""
    torch.manual_seed(seed)
    model = create_model("tnet_b0", num_classes=10).eval()
    source = open_image(image or SCENE)
    with torch.inference_mode():
        walk = model([source], locations=locations).walk
    folder.mkdir(parents=True, exist_ok=True)
    overlay(source, walk).save(folder / "walk.png")
    return Demonstration(
        image_size=source.size, steps=_steps(walk), seen=_seen(walk, source), picture=folder / "walk.png"
    )


def _steps(walk: Walk) -> tuple[Step, ...]:
    weights = walk.weights[0].tolist()
    steps = []
    for depth, level in enumerate(walk.levels):
        chances: list[float | None] = [None] * level.cells.shape[1]
        if level.probabilities is not None:
            parents = level.probabilities.shape[1]
            cells = level.cells[0].view(parents, -1)
            chances = list(level.probabilities[0].gather(1, cells).flatten().tolist())
        for box, chance in zip(level.boxes[0].tolist(), chances, strict=True):
            steps.append(Step(level=depth + 1, box=tuple(box), probability=chance, weight=weights.pop(0)))
    return tuple(steps)


def _seen(walk: Walk, source: ImageSource) -> float:
    frame = (0.0, 0.0, float(source.size[0]), float(source.size[1]))
    boxes = [box for level in walk.levels[1:] for box in level.boxes[0].tolist()]
    visible = [intersect((left, top, left + w, top + h), frame) for left, top, w, h in boxes]
    return union_area(box for box in visible if box) / (frame[2] * frame[3])
