from __future__ import annotations

import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from foveate.data import augmentation
from foveate.data.augmentation import (
    METHODS,
    Affine,
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    augment,
    distorted_crop,
    move_and_turn,
    photometric,
    resize,
)
from tests.official import golden

OFFICIAL = golden("preproc")
SOURCE = OFFICIAL["src_u8"].float().permute(2, 0, 1) / 255


def official(key: str) -> Tensor:
    return OFFICIAL[key].permute(2, 0, 1)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("key", [key for key in OFFICIAL if key.startswith("resize_")])
def test_resizing_equals_tensorflows(key: str) -> None:
    method, height, width = re.fullmatch(r"resize_(\w+)_(\d+)x(\d+)", key).groups()
    torch.testing.assert_close(resize(SOURCE, (int(height), int(width)), method), official(key), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "key", [k for k in OFFICIAL if k.split("_")[0] in ("brightness", "saturation", "hue", "contrast")]
)
def test_photometric_ops_equal_tensorflows(key: str) -> None:
    name, amount = key.split("_")
    got = getattr(augmentation, f"adjust_{name}")(SOURCE, float(amount))
    torch.testing.assert_close(got, official(key), atol=2e-6, rtol=0)


def test_a_chain_of_ops_equals_tensorflows() -> None:
    image = adjust_brightness(resize(SOURCE, (24, 40), "lanczos3"), 0.1)
    image = adjust_contrast(adjust_hue(adjust_saturation(image, 1.3), -0.15), 0.7).clamp(0, 1)
    wanted = official("order0_chain_b0.1_s1.3_h-0.15_c0.7_on_lanczos3_24x40")
    torch.testing.assert_close(image, wanted, atol=1e-5, rtol=0)


def test_warps_equal_tensorflows() -> None:
    height, width = SOURCE.shape[1:]
    torch.testing.assert_close(Affine.translation(3.3, -2.7)(SOURCE), official("translate_dx3.3_dy-2.7"))
    for angle in (0.2, -0.3):
        torch.testing.assert_close(Affine.rotation(angle, height, width)(SOURCE), official(f"rotate_{angle}"))
    turned = Affine.rotation(0.31, height, width)(Affine.translation(-5, 2)(SOURCE))
    torch.testing.assert_close(turned, official("translate_then_rotate"))


@given(st.integers(20, 300), st.integers(20, 300), st.integers(0, 1000))
def test_crops_keep_their_promises(width: int, height: int, seed: int) -> None:
    left, top, wide, tall = crop = distorted_crop(width, height, generator(seed))
    assert 0 <= left <= width - wide
    assert 0 <= top <= height - tall
    assert 0.85 <= wide * tall / (width * height) <= 1
    assert crop == (0, 0, width, height) or 0.5 * tall - 0.5 <= wide <= 2 * tall + 0.5


def test_crops_vary_and_cover_the_object() -> None:
    draw = generator()
    crops = {distorted_crop(200, 200, draw) for _ in range(200)}
    assert len(crops) > 150
    corner = (190.0, 190.0, 200.0, 200.0)
    for _ in range(200):
        left, top, wide, tall = distorted_crop(200, 200, draw, objects=[corner])
        common = max(0, left + wide - 190) * max(0, top + tall - 190)
        assert common >= 10


def test_one_photometric_case_in_five_does_nothing() -> None:
    draw = generator()
    image = SOURCE * 2 - 0.5  # beyond [0, 1], so that clipping shows
    same = sum(torch.equal(photometric(image, draw), image) for _ in range(500))
    assert same / 500 == pytest.approx(0.2, abs=4 * math.sqrt(0.2 * 0.8 / 500))


def test_moving_and_turning_brings_black_in() -> None:
    moved = move_and_turn(torch.ones(3, 60, 80), generator(1))
    assert (moved == 0).any()
    assert (moved == 1).float().mean() > 0.6


@pytest.mark.parametrize("kind", ["photometric", "geometric"])
def test_the_whole_chain_repeats_with_its_generator(kind: str) -> None:
    first, second, other = (augment(SOURCE, (32, 48), generator(seed), kind=kind) for seed in (1, 1, 2))
    assert first.shape == (3, 32, 48)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert first.min() >= -1.5
    assert first.max() <= 1.5


def test_every_method_keeps_a_constant_image() -> None:
    for method in METHODS:
        torch.testing.assert_close(resize(torch.full((1, 17, 23), 0.3), (9, 40), method), torch.full((1, 9, 40), 0.3))
    with pytest.raises(ValueError, match="method must be one of"):
        resize(SOURCE, (4, 4), "cubic")
