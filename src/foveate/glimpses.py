"""Many (source, region) pairs -> one batch of glimpses, read by threads where that helps, with an account."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.geometry import Region
from foveate.sources import ImageSource, TensorImage


@dataclass(frozen=True, slots=True)
class ReadingCost:
    """What reading took: glimpses, full-resolution pixels that they show, bytes handed over, and seconds."""

    glimpses: int = 0
    pixels: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def __add__(self, other: ReadingCost) -> ReadingCost:
        """Both together."""
        return ReadingCost(
            self.glimpses + other.glimpses,
            self.pixels + other.pixels,
            self.bytes + other.bytes,
            self.seconds + other.seconds,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class GlimpseReader:
    """Reads regions at the base resolution ``size`` (width, height); None keeps a region's own size.

    ``threads`` read concurrently from sources that are not in memory, where waiting is what takes the time.
    """

    size: tuple[int, int] | None
    antialias: bool = False
    threads: int = 4

    def __call__(
        self, sources: Sequence[ImageSource], regions: Sequence[Sequence[Region]]
    ) -> tuple[Tensor, ReadingCost]:
        """Every region of every source, source by source, as (N, channels, height, width); and the cost."""
        started = time.perf_counter()
        pairs = [(s, r) for s, wanted in zip(sources, regions, strict=True) for r in wanted]
        in_memory = all(isinstance(source, TensorImage) for source in sources)
        if in_memory or self.threads < 2 or len(pairs) < 2:
            glimpses = [self._read(*pair) for pair in pairs]
        else:
            with ThreadPoolExecutor(min(self.threads, len(pairs))) as pool:
                glimpses = list(pool.map(lambda pair: self._read(*pair), pairs))
        batch = _stack(glimpses)
        pixels = sum(_visible_pixels(*pair) for pair in pairs)
        return batch, ReadingCost(len(pairs), pixels, batch.nbytes, time.perf_counter() - started)

    def _read(self, source: ImageSource, region: Region) -> Tensor:
        size = self.size or (round(region.width), round(region.height))
        # The keyword is left out where it is not needed: a source need not know it.
        return source.read(region, size, antialias=True) if self.antialias else source.read(region, size)


def _stack(glimpses: list[Tensor]) -> Tensor:
    shapes = sorted({tuple(glimpse.shape) for glimpse in glimpses})
    if len(shapes) > 1:
        raise ValueError(
            f"images read together must agree in channels, height and width, got {' and '.join(map(str, shapes))}"
        )
    return torch.stack(glimpses)


def _visible_pixels(source: ImageSource, region: Region) -> int:
    seen = region.visible(source.size)
    return round((seen[2] - seen[0]) * (seen[3] - seen[1])) if seen else 0
