from __future__ import annotations

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor

from foveate.models.bagnet import BLOCKS, BagNet77


def by_the_table(network: BagNet77, x: Tensor) -> Tensor:
    """The paper's Table 1 and 2 in plain functions, with TensorFlow's padding written out."""

    def conv(layer: torch.nn.Conv2d, x: Tensor, stride: int = 1, same: bool = False) -> Tensor:
        if same:
            k = layer.weight.shape[-1]
            pads = [max((-(-n // stride) - 1) * stride + k - n, 0) for n in (x.shape[-1], x.shape[-2])]
            x = F.pad(x, (pads[0] // 2, pads[0] - pads[0] // 2, pads[1] // 2, pads[1] - pads[1] // 2))
        return F.conv2d(x, layer.weight, layer.bias, stride)

    def active(x: Tensor) -> Tensor:
        return torch.where(x > 0, x, 0.2 * x)

    x = active(conv(network.stem, x))
    blocks = [block for stage in network.stages.values() for block in stage]
    for block, (_, _, k, stride, padding) in zip(blocks, BLOCKS, strict=True):
        branch = active(conv(block.reduce, x))
        branch = conv(block.expand, active(conv(block.convolve, branch, stride, padding == "same")))
        shortcut = x[..., 1:-1, 1:-1] if padding == "valid" and k == 3 else x
        if isinstance(block.project, torch.nn.Conv2d):
            shortcut = conv(block.project, shortcut, stride)
        x = active(branch + shortcut)
    return active(conv(network.head, x)).mean((2, 3))


@pytest.mark.parametrize("size", [(77, 77), (224, 224), (80, 101)])
def test_it_is_the_papers_table(size: tuple[int, int]) -> None:
    network = BagNet77().eval()
    x = torch.randn(1, 3, *size)
    torch.testing.assert_close(network(x), by_the_table(network, x))


def test_timm_knows_it() -> None:
    assert isinstance(timm.create_model("bagnet77", in_chans=4), BagNet77)
    with pytest.raises(ValueError, match="no separate weights"):
        timm.create_model("bagnet77", pretrained=True)


def test_what_is_too_small_is_refused() -> None:
    assert BagNet77()(torch.randn(1, 3, 27, 27)).shape == (1, 512)
    with pytest.raises(ValueError, match=r"at least 27 px a side, got \(26, 40\)"):
        BagNet77()(torch.randn(1, 3, 26, 40))
