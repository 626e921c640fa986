from __future__ import annotations

import threading
import time

import pytest
import torch
from torch import Tensor

from foveate.geometry import Region
from foveate.glimpses import GlimpseReader
from foveate.sources import TensorImage


class SlowImage:
    """The least that a source must be: it does not even know antialiasing."""

    def __init__(self, pixels: Tensor) -> None:
        self.image = TensorImage(pixels)
        self.threads: set[int] = set()

    @property
    def size(self) -> tuple[int, int]:
        return self.image.size

    def read(self, region: Region, size: tuple[int, int]) -> Tensor:
        self.threads.add(threading.get_ident())
        time.sleep(0.02)
        return self.image.read(region, size)


REGIONS = [[Region(0, 0, 8, 8), Region(4, 0, 8, 8)], [Region(2, 2, 4, 4), Region(-2, 0, 8, 8)]]


def test_glimpses_come_source_by_source_and_in_order() -> None:
    images = [TensorImage(torch.randn(3, 12, 12)) for _ in range(2)]
    batch, _ = GlimpseReader(size=(6, 5))(images, REGIONS)
    assert batch.shape == (4, 3, 5, 6)
    for number, (source, region) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        assert torch.equal(batch[number], images[source].read(REGIONS[source][region], (6, 5)))


def test_threads_read_the_same() -> None:
    images = [SlowImage(torch.randn(1, 12, 12)) for _ in range(2)]
    alone, _ = GlimpseReader(size=(6, 6), threads=1)(images, REGIONS)
    assert images[0].threads == {threading.get_ident()}
    together, _ = GlimpseReader(size=(6, 6), threads=4)(images, REGIONS)
    assert torch.equal(alone, together)
    assert len(images[0].threads | images[1].threads) > 2


def test_the_account_counts_what_can_be_seen() -> None:
    images = [SlowImage(torch.randn(2, 12, 12)), SlowImage(torch.randn(2, 12, 12))]
    _, cost = GlimpseReader(size=(6, 6))(images, REGIONS)
    assert cost.glimpses == 4
    assert cost.pixels == 64 + 64 + 16 + 48  # the last region lies partly outside
    assert cost.bytes == 4 * 2 * 6 * 6 * 4
    assert cost.seconds >= 0.02
    assert (cost + cost).pixels == 2 * cost.pixels


def test_no_size_keeps_the_regions_own() -> None:
    batch, _ = GlimpseReader(size=None)([TensorImage(torch.randn(1, 12, 10))], [[Region.whole((10, 12))]])
    assert batch.shape == (1, 1, 12, 10)


def test_images_that_do_not_go_together_are_refused() -> None:
    images = [TensorImage(torch.randn(channels, 8, 8)) for channels in (1, 3)]
    with pytest.raises(ValueError, match=r"must agree in channels.*\(1, 4, 4\) and \(3, 4, 4\)"):
        GlimpseReader(size=(4, 4))(images, [[Region.whole((8, 8))]] * 2)
