from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from foveate.layers import (
    Coordinates,
    FeatureWeighting,
    SqueezeExcite,
    at_depth,
    encode_positions,
    give_levels_their_norms,
    initialise_fan_out,
    initialise_glorot,
    policy,
)
from tests.official import golden


@pytest.mark.parametrize(
    ("name", "grid", "size"),
    [("cub_tnet_b0_5loc", 5, 320), ("fmow_tnet_448_2loc", 3, 320), ("imagenet_tnet_3loc", 5, 512)],
)
def test_positions_are_encoded_as_in_the_official_code(name: str, grid: int, size: int) -> None:
    data = golden(name)
    first = encode_positions(torch.zeros(1, 3), size)
    torch.testing.assert_close(first, data["lvl1_f_pos"].reshape(-1, size)[:1])
    cells = data["lvl1_mask"].nonzero()[:, 1]
    positions = torch.stack((cells // grid, cells % grid, torch.ones_like(cells)), 1)
    torch.testing.assert_close(
        encode_positions(positions, size), data["lvl2_f_pos"].reshape(-1, size), atol=2e-6, rtol=0
    )


@pytest.mark.parametrize(("size", "tail"), [(512, 2), (320, 2), (352, 4), (384, 0), (448, 4), (7, 1), (4, 4)])
def test_what_six_does_not_divide_is_zero(size: int, tail: int) -> None:
    encoded = encode_positions(torch.tensor([[3, 5, 1]]), size)
    assert encoded.shape == (1, size)
    assert tail == 0 or encoded[0, -tail:].abs().sum() == 0
    if size >= 6:
        count = size // 6
        slowest = math.sin(3 * 0.01) if count > 1 else math.sin(3)
        assert encoded[0, count - 1].item() == pytest.approx(slowest, abs=1e-6)


def test_zero_logits_give_the_uniform_distribution() -> None:
    assert policy(torch.zeros(2, 25)).tolist() == [[pytest.approx(1 / 25)] * 25] * 2


@pytest.mark.gradients
def test_zero_logits_have_finite_gradients() -> None:
    logits = torch.zeros(1, 9, requires_grad=True)
    policy(logits)[0, 3].log().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert logits.grad.abs().max() < 10


def test_the_policy_depends_on_the_direction_of_the_logits_alone() -> None:
    logits = torch.randn(4, 9)
    for scale in (1e-9, 1e9):
        torch.testing.assert_close(policy(logits * scale), policy(logits))
    # Nothing can be likelier than one logit of 1 among zeros, before softmax.
    assert policy(torch.eye(9)).max().item() == pytest.approx(math.e / (math.e + 8))


def test_coordinates_append_row_then_column() -> None:
    module = Coordinates(2, 3)
    out = module(torch.zeros(1, 6, 1))
    assert out[0, :, 1].tolist() == [-1, -1, -1, 1, 1, 1]
    assert out[0, :, 2].tolist() == [-1, 0, 1, -1, 0, 1]
    module.height.weight.fill_(2)
    module.width.bias.fill_(5)
    out = module(torch.zeros(1, 6, 1))
    assert out[0, :, 1].tolist() == [-2, -2, -2, 2, 2, 2]
    assert out[0, :, 2].tolist() == [4, 5, 6, 4, 5, 6]


def test_squeeze_excitation_is_its_equation() -> None:
    module = SqueezeExcite(3, 2)
    x = torch.randn(2, 5, 3)
    hidden = x.mean(1) @ module.reduce.weight.T + module.reduce.bias
    gate = torch.sigmoid((hidden * torch.sigmoid(hidden)) @ module.expand.weight.T + module.expand.bias)
    torch.testing.assert_close(module(x), x * gate[:, None])


def test_weights_sum_to_one_for_any_number_of_vectors() -> None:
    module = FeatureWeighting(8)
    for count in (1, 2, 7):
        weights = module(torch.randn(3, count, 8))
        torch.testing.assert_close(weights.sum(1), torch.ones(3))
    assert module(torch.randn(1, 1, 8)).item() == 1


def test_weights_begin_as_in_tensorflow() -> None:
    layers = nn.ModuleDict(
        {"conv": nn.Conv2d(64, 128, 3), "depthwise": nn.Conv2d(256, 256, 5, groups=256), "dense": nn.Linear(400, 300)}
    )
    initialise_glorot(layers)
    for name, fan_in, fan_out in (("conv", 64 * 9, 128 * 9), ("dense", 400, 300)):
        weight, std = layers[name].weight, math.sqrt(2 / (fan_in + fan_out))
        assert weight.std().item() == pytest.approx(std, rel=0.02)
        assert weight.abs().max().item() <= 2 * std / 0.87962566 * 1.0001
    initialise_fan_out(layers)
    assert layers["conv"].weight.std().item() == pytest.approx(math.sqrt(2 / (128 * 9)), rel=0.02)
    assert layers["depthwise"].weight.std().item() == pytest.approx(math.sqrt(2 / 25), rel=0.05)
    dense = layers["dense"].weight
    assert dense.abs().max().item() == pytest.approx(1 / math.sqrt(300), rel=0.01)
    assert dense.std().item() == pytest.approx(1 / math.sqrt(3 * 300), rel=0.02)
    initialise_fan_out(layers["dense"], linear_as_convolution=True)
    assert dense.std().item() == pytest.approx(math.sqrt(2 / 300), rel=0.02)
    assert all(layer.bias.abs().sum() == 0 for layer in layers.values())


def test_each_level_has_norms_of_its_own() -> None:
    network = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()))
    plain = copy.deepcopy(network)
    give_levels_their_norms(network, 2)
    near, far = torch.randn(8, 1, 9, 9), 5 + 3 * torch.randn(8, 1, 9, 9)
    alone = {0: copy.deepcopy(plain), 1: copy.deepcopy(plain), 2: copy.deepcopy(plain)}
    for _ in range(3):
        for depth, pixels in ((0, far), (1, near)):
            with at_depth(depth):
                torch.testing.assert_close(network(pixels), alone[depth](pixels))
    network.eval()
    for depth, pixels in ((0, far), (1, near)):
        with at_depth(depth):
            torch.testing.assert_close(network(pixels), alone[depth].eval()(pixels))
    with at_depth(5):  # deeper than there are norms
        torch.testing.assert_close(network(near), alone[1](near))
    torch.testing.assert_close(network(far), alone[0](far))  # outside of a walk all is at first sight
