from __future__ import annotations

import pytest
import torch

from foveate.complexity import count_flops
from foveate.data.transforms import Resized
from foveate.evaluation import Contender, evaluate
from foveate.models import TNet
from tests.tiny import Corners, tiny_model

DATA = Corners(21, seed=3)


def contender(*, locations: tuple[int, ...] = (), side: int | None = None, **options: object) -> Contender:
    size = None if side is None else (side, side)
    return Contender(name="one", model=tiny_model(**options), prepare=Resized(size), locations=locations)


@pytest.mark.parametrize("side", [None, 96])
@pytest.mark.parametrize("locations", [(), (1,), (3,), (2, 1)])
def test_a_score_is_what_one_image_after_the_other_gives(locations: tuple[int, ...], side: int | None) -> None:
    subject = contender(locations=locations, side=side)
    (score,) = evaluate([subject], DATA, batch=4)
    assert isinstance(subject.model, TNet)
    right = seen = 0
    for index in range(len(DATA)):
        example = DATA[index]
        source = subject.prepare(example, torch.Generator())
        prediction = subject.model([source] if not isinstance(source, torch.Tensor) else source[None], locations)
        right += int(prediction.logits.argmax()) == example.label
        scale = 1 if side is None else side / 48
        x, y, w, h = (v * scale for v in example.boxes[0].tolist())
        opened = [box.tolist() for level in prediction.walk.levels[1:] for box in level.boxes[0]]
        seen += any(
            left <= x and top <= y and left + width >= x + w and top + height >= y + h
            for left, top, width, height in opened
        )
    assert score.accuracy == pytest.approx(right / len(DATA))
    assert score.attended == (pytest.approx(seen / len(DATA)) if locations else None)
    assert score.glimpses == {(): 1, (1,): 2, (3,): 4, (2, 1): 5}[locations]
    assert score.auc is None
    assert score.milliseconds > 0


def test_flops_are_of_the_image_that_the_model_is_given() -> None:
    subject = contender(whole_image=True, side=96)
    (score,) = evaluate([subject], DATA)
    assert score.flops == count_flops(subject.model, (96, 96), ()).flops
    assert score.attended is None


class TwoClasses(Corners):
    classes = ("top", "bottom")

    def __getitem__(self, index: int):  # type: ignore[no-untyped-def]
        example = super().__getitem__(index)
        return type(example)(example.image, example.label // 2, example.boxes, example.name)


def test_the_area_under_the_curve_is_the_share_of_pairs_in_the_right_order() -> None:
    data = TwoClasses(21)
    subject = contender(num_classes=2, locations=(2,))
    (score,) = evaluate([subject], data, batch=8)
    images = torch.stack([data[index].image for index in range(len(data))])
    labels = torch.tensor([data[index].label for index in range(len(data))])
    claims = subject.model(images, locations=(2,)).logits.softmax(1)[:, 1]
    pairs = claims[labels == 1][:, None] - claims[labels == 0][None]
    assert score.auc == pytest.approx(float(((pairs > 0) + 0.5 * (pairs == 0)).mean()), abs=1e-6)


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    evaluate([contender(whole_image=True)], DATA, batch=8, advance=lambda *counts: told.append(counts))
    assert told == [(8, 21), (16, 21), (21, 21)]
