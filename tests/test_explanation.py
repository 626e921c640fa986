from __future__ import annotations

import pytest
import torch

from foveate import TensorImage, create_model
from foveate.explanation import COLOURS, overlay
from foveate.models import TNet


@pytest.fixture(scope="module")
def small() -> TNet:
    torch.manual_seed(0)
    model = create_model("tnet", backbone="test_resnet.r160_in1k", base=64, num_classes=3).eval()
    assert isinstance(model, TNet)
    return model


@pytest.mark.parametrize(
    ("size", "locations", "longest"),
    [
        ((10, 10), (5, 5), 1024),
        ((4, 4), (25, 5), 1024),
        ((1, 1), (3,), 1024),
        ((800, 800), (3, 3, 3, 3), 64),
        ((30, 400), (2,), 100),
    ],
)
def test_any_walk_can_be_drawn(small: TNet, size: tuple[int, int], locations: tuple[int, ...], longest: int) -> None:
    image = TensorImage(torch.randn(3, *size).clamp(-1, 1))
    with torch.inference_mode():
        walk = small([image], locations=locations).walk
    picture = overlay(image, walk, longest_side=longest)
    scale = min(1, longest / max(size))
    assert picture.size == (max(1, round(size[1] * scale)), max(1, round(size[0] * scale)))


def test_boxes_are_drawn_where_they_are(small: TNet) -> None:
    image = TensorImage(torch.zeros(3, 300, 400))
    with torch.inference_mode():
        walk = small([image], locations=(1,)).walk
    picture = overlay(image, walk)
    left, top, width, height = (round(v) for v in walk.levels[1].boxes[0, 0].tolist())
    colour = tuple(int(COLOURS[0][i : i + 2], 16) for i in (1, 3, 5))
    bottom, right = min(top + height, 300) - 1, min(left + width, 400) - 1
    for corner in ((right, bottom), (right, max(top, 0)), (max(left, 0), bottom)):
        assert picture.getpixel(corner) == colour
    assert picture.getpixel(((left + right) // 2, (top + bottom) // 2)) == (128, 128, 128)
