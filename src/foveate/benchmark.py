"""How fast, and with how much memory: a TNet, the whole-image baseline, and the limit, side by side in one run.

The limit is the bare backbone on as many glimpses as the walk reads: no walk can be faster than that.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from foveate.backbones import pass_size
from foveate.creation import open_model
from foveate.models import Model, TNet, WholeImage, WholeImageConfig
from foveate.traversal import check_locations, glimpses_per_level

# One round at one setting, by the places of the kinds. Walk and limit differ by a few per cent and the machine drifts
# by more: they take turns so that a steady drift cancels.
ROUND = (0, 1, 1, 0, 0, 1, 1, 0, 2, 3)

Kind = Literal["walk", "limit", "whole", "whole, one by one"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A square image's side in pixels, and the locations to open in it."""

    image: int
    locations: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One thing to measure."""

    kind: Kind
    model: str
    setting: Setting
    batch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What was measured of a case: the median of the rounds, all rounds, and the memory of a process of its own."""

    case: Case
    glimpses: int
    milliseconds: float
    repetitions: tuple[float, ...]
    peak_megabytes: float
    working_megabytes: float  # what the run added to a process that had the model and the images


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratios:
    """The three figures that matter at one setting."""

    setting: Setting
    walk_over_limit: float
    speedup: float  # over the faster of the two ways to run the whole-image baseline
    memory: float  # walk over baseline with the whole batch at once
    memory_one_by_one: float  # walk over baseline with one image at a time


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """A whole run."""

    rows: tuple[Row, ...]
    ratios: tuple[Ratios, ...]
    threads: int
    torch: str


def run(
    model: str,
    baseline: str | None,
    settings: Sequence[Setting],
    *,
    batch: int,
    repeats: int,
    advance: Callable[[str], None] = lambda _what: None,
) -> Result:
    """Times all cases in turn, ``repeats`` times over, then takes the memory of each in a process of its own."""
    opened = _open_tnet(model)
    for setting in settings:
        check_locations(setting.locations, opened.grid.cells)
    rows = measure(plan(model, baseline, settings, batch), repeats=repeats, advance=advance)
    return Result(
        rows=tuple(rows), ratios=tuple(ratios(rows)), threads=torch.get_num_threads(), torch=torch.__version__
    )


def usual_settings(name: str) -> list[Setting]:
    """The resolutions and locations at which the paper reports a model, by its name or its saved folder."""
    config = _open_tnet(name).config
    if config.name == "tnet_fmow":
        return [Setting(image=448, locations=(2,)), Setting(image=896, locations=(2, 1))]
    if config.name.startswith("tnet_b"):
        return [Setting(image=448, locations=(5,))]
    # The size at which cells are read pixel by pixel.
    return [Setting(image=round(config.base / min(config.cell)), locations=config.locations or ())]


def plan(model: str, baseline: str | None, settings: Sequence[Setting], batch: int) -> list[Case]:
    """All cases of a run. Without a baseline, the model's own backbone is run on whole images."""
    against = baseline or model
    kinds: list[tuple[Kind, str]] = [
        ("walk", model),
        ("limit", model),
        ("whole", against),
        ("whole, one by one", against),
    ]
    return [Case(kind=kind, model=name, setting=setting, batch=batch) for setting in settings for kind, name in kinds]


def measure(cases: Sequence[Case], *, repeats: int, advance: Callable[[str], None]) -> list[Row]:
    """Rows for all cases; ``advance`` is told of each step before it is taken."""
    runs = [_prepare(case) for case in cases]
    times: list[list[float]] = [[] for _ in cases]
    with torch.inference_mode():
        for round_ in range(repeats + 1):  # the first only warms up
            this_round: list[list[float]] = [[] for _ in cases]
            for index in _order(len(cases)):
                advance(f"timing {cases[index].kind} at {cases[index].setting.image} px")
                started = time.perf_counter()
                runs[index]()
                this_round[index].append((time.perf_counter() - started) * 1e3 / cases[index].batch)
            for kept, measured in zip(times, this_round, strict=True):
                kept += [statistics.mean(measured)] if round_ else []
    del runs
    rows = []
    for case, taken in zip(cases, times, strict=True):
        advance(f"memory of {case.kind} at {case.setting.image} px")
        peak, working = _memory_apart(case)
        rows.append(
            Row(
                case=case,
                glimpses=sum(glimpses_per_level(case.setting.locations)) if case.kind in ("walk", "limit") else 1,
                milliseconds=statistics.median(taken),
                repetitions=tuple(taken),
                peak_megabytes=peak,
                working_megabytes=working,
            )
        )
    return rows


def steps(settings: Sequence[Setting], repeats: int) -> int:
    """How often ``run`` calls ``advance``."""
    return len(settings) * (len(ROUND) * (repeats + 1) + len(set(ROUND)))


def _order(cases: int) -> list[int]:
    """One round over all cases, setting by setting."""
    kinds = len(set(ROUND))
    return [first + kind for first in range(0, cases, kinds) for kind in ROUND]


def ratios(rows: Sequence[Row]) -> list[Ratios]:
    """The figures that matter, setting by setting. Times are compared within each round, then the median taken."""
    found = []
    for setting in dict.fromkeys(row.case.setting for row in rows):
        by_kind = {row.case.kind: row for row in rows if row.case.setting == setting}
        walk, limit = by_kind["walk"], by_kind["limit"]
        whole, single = by_kind["whole"], by_kind["whole, one by one"]
        found.append(
            Ratios(
                setting=setting,
                walk_over_limit=_ratio(walk, limit),
                speedup=min(_ratio(whole, walk), _ratio(single, walk)),
                memory=walk.peak_megabytes / whole.peak_megabytes,
                memory_one_by_one=walk.peak_megabytes / single.peak_megabytes,
            )
        )
    return found


def _ratio(above: Row, below: Row) -> float:
    pairs = zip(above.repetitions, below.repetitions, strict=True)
    return statistics.median(a / b for a, b in pairs)


def _prepare(case: Case) -> Callable[[], Any]:
    """What to run for a case, on its own images."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    setting = case.setting
    if case.kind == "limit":
        model = _open_tnet(case.model)
        count = case.batch * (sum(glimpses_per_level(setting.locations)) - 1)
        sides = ((case.batch, model.config.first_side), (count, model.config.base))
        tiles = [_noise((n, model.config.in_chans, side, side), generator) for n, side in sides if n]
        return lambda: [_bare(model, part) for part in tiles]
    looker: Model = _open_tnet(case.model) if case.kind == "walk" else _open_whole(case.model)
    images = _noise((case.batch, looker.config.in_chans, setting.image, setting.image), generator)
    if case.kind == "walk":
        return lambda: looker(images, locations=setting.locations)
    if case.kind == "whole":
        return lambda: looker(images)
    return lambda: [looker(image) for image in images.split(1)]


def _open_tnet(name: str) -> TNet:
    model = open_model(name).eval()
    if not isinstance(model, TNet):
        raise ValueError(f"model must be a TNet, got {name}, which looks at whole images")
    return model


def _open_whole(name: str) -> WholeImage:
    """A model of whole images, or that on a TNet's own backbone."""
    model = open_model(name).eval()
    if isinstance(model, WholeImage):
        return model
    config = model.config
    shared = {part: getattr(config, part) for part in ("num_classes", "backbone", "in_chans", "mean", "std")}
    return WholeImage(WholeImageConfig(**shared)).eval()


def _noise(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator).mul_(2).sub_(1)


def _bare(model: TNet, tiles: Tensor) -> list[Tensor]:
    # The very passes that the walk makes, so that the difference is the walk alone.
    return [model.backbone.network(part) for part in tiles.split(pass_size(tiles))]


def _memory_apart(case: Case) -> tuple[float, float]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(_peak_memory, case, torch.get_num_threads()).result()


def _peak_memory(case: Case, threads: int) -> tuple[float, float]:
    """In a fresh process: its peak in MB after one run, and how far that lies above what it held before."""
    torch.set_num_threads(threads)
    run = _prepare(case)
    before = _peak_so_far()
    with torch.inference_mode():
        run()
    after = _peak_so_far()
    return after, after - before


def _peak_so_far() -> float:
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would report the parent's peak as well, from before the fork
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
