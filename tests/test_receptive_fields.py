from __future__ import annotations

import pytest
import timm
import torch
from torch import Tensor, nn

from foveate.models.bagnet import BagNet77
from foveate.receptive_fields import LayerField, receptive_fields


def by_layer(network: nn.Module, side: int, channels: int = 3) -> dict[str, LayerField]:
    return {field.layer: field for field in receptive_fields(network, torch.zeros(1, channels, side, side))}


def test_bagnet_sees_what_the_papers_table_says() -> None:
    fields = by_layer(BagNet77(), 77)
    assert [(f.height, f.field.x.size) for f in fields.values()] == [
        (75, 3), (38, 5), (38, 9), (19, 13), (19, 21), (9, 29), (9, 45), (7, 61), (7, 77),
    ]  # fmt: skip
    assert fields["stages.stage4"].channels == 1024


def test_efficientnet_sees_what_the_papers_table_says() -> None:
    fields = by_layer(timm.create_model("tf_efficientnet_b0", num_classes=0), 224)
    sizes = [f.field.x.size for f in fields.values()]
    assert sizes == [3, 7, 11, 19, 35, 67, 83, 115, 147, 211, 275, 339, 403, 531, 659, 787, 851]
    assert (fields["blocks.3"].height, fields["blocks.3"].field.x.stride) == (14, 16)
    # Centres of pixels, by hand: every stride-2 convolution without padding before moves them by one step.
    assert fields["blocks.3"].field.x.centre(0) == 15.5


class Odd(nn.Module):
    """Everything that is awkward at once: asymmetric padding, dilation, pooling, a shortcut, permuted axes, gates."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, (3, 5), stride=(2, 1), padding=(0, 3))
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.wide = nn.Conv2d(4, 4, 3, dilation=2, padding="same")
        self.norm = nn.LayerNorm(4)
        self.last = nn.Conv2d(4, 2, 2, bias=False)
        self.mean = nn.AvgPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.first(nn.functional.pad(x, (1, 0, 0, 2))))
        x = x + self.wide(x)
        x = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        x = x * x.mean((2, 3), keepdim=True).sigmoid()
        return self.mean(self.last(x)).mean((2, 3))


@pytest.mark.gradients
def test_fields_are_those_that_gradients_find() -> None:
    """An independent way: which input pixels have a gradient, with everything that mixes all pixels left out."""
    network = Odd()
    example = torch.zeros(1, 1, 64, 64)
    traced = {layer.layer: layer for layer in receptive_fields(network, example)}
    for layer in ("pool", "last", "mean"):
        field = traced[layer].field
        i, j = traced[layer].height // 2, traced[layer].width // 2
        rows, columns = _touched(network, layer, i, j)
        for axis, index, touched in ((field.y, i, rows), (field.x, j, columns)):
            start = axis.start + index * axis.stride
            assert (start, start + axis.size - 1) == (touched.min().item(), touched.max().item()), layer


def _touched(network: Odd, until: str, i: int, j: int) -> tuple[Tensor, Tensor]:
    """Rows and columns of the input that pixel (i, j) depends on; average instead of maximum, no norm, no gate."""
    for conv in (network.first, network.wide, network.last):
        nn.init.ones_(conv.weight)
    x = torch.zeros(1, 1, 64, 64, requires_grad=True)
    y = nn.functional.avg_pool2d(network.first(nn.functional.pad(x, (1, 0, 0, 2))), 3, 2, 1)
    if until != "pool":
        y = network.last(y + network.wide(y))
    if until == "mean":
        y = network.mean(y)
    y[0, :, i, j].sum().backward()
    assert x.grad is not None
    seen = x.grad[0, 0] != 0
    return seen.any(1).nonzero(), seen.any(0).nonzero()


def test_branches_are_left_out() -> None:
    fields = by_layer(timm.create_model("resnet18", num_classes=0), 224)
    assert not [layer for layer in fields if "downsample" in layer]
    assert "layer2.0" in fields


class Shared(nn.Module):
    """One activation, used at two sizes: its output is not one map."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, stride=2)
        self.second = nn.Conv2d(4, 4, 3, stride=2)
        self.activate = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.activate(self.second(self.activate(self.first(x)))).mean((2, 3))


def test_modules_that_are_used_twice_are_left_out() -> None:
    assert set(by_layer(Shared(), 64)) == {"first", "second"}


def test_the_network_is_left_as_it_was() -> None:
    network = timm.create_model("resnet18", num_classes=0).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    example = torch.zeros(1, 3, 64, 64)
    receptive_fields(network, example)
    assert network.training
    assert not hasattr(example, "_receptive_field")
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert not any(module._forward_hooks for module in network.modules())
