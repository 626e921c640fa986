from __future__ import annotations

from pathlib import Path

import pytest
import torch

import foveate
from foveate import benchmark
from foveate.benchmark import Case, Row, Setting, ratios

TINY = {"backbone": "test_efficientnet.r160_in1k", "base": 64, "num_classes": 3}


def test_a_run_measures_every_case(tmp_path: Path) -> None:
    foveate.save(foveate.create_model("tnet", **TINY), tmp_path / "tnet")
    foveate.save(
        foveate.create_model("whole_image", **{k: v for k, v in TINY.items() if k != "base"}), tmp_path / "whole"
    )
    steps: list[str] = []
    settings = [Setting(image=256, locations=(2, 1))]
    result = benchmark.run(
        str(tmp_path / "tnet"), str(tmp_path / "whole"), settings, batch=2, repeats=2, advance=steps.append
    )
    assert [row.case.kind for row in result.rows] == ["walk", "limit", "whole", "whole, one by one"]
    assert [row.glimpses for row in result.rows] == [5, 5, 1, 1]
    assert len(steps) == benchmark.steps(settings, 2)
    for row in result.rows:
        assert len(row.repetitions) == 2
        assert row.milliseconds > 0
        assert row.peak_megabytes > 100  # torch itself
        assert 0 <= row.working_megabytes < row.peak_megabytes
    found = result.ratios[0]
    assert found.setting == settings[0]
    assert found.memory == result.rows[0].peak_megabytes / result.rows[2].peak_megabytes
    assert result.threads == torch.get_num_threads()


def row(kind: benchmark.Kind, repetitions: tuple[float, ...], peak: float) -> Row:
    case = Case(kind=kind, model="m", setting=Setting(image=8, locations=(1,)), batch=1)
    return Row(
        case=case, glimpses=2, milliseconds=0, repetitions=repetitions, peak_megabytes=peak, working_megabytes=0
    )


def test_ratios_compare_within_rounds_and_with_the_better_baseline() -> None:
    rows = [
        row("walk", (10, 100, 12), 50),
        row("limit", (10, 80, 10), 40),
        row("whole", (100, 900, 90), 200),
        row("whole, one by one", (40, 410, 42), 100),
    ]
    (found,) = ratios(rows)
    assert found.walk_over_limit == 1.2  # of 1.0, 1.25 and 1.2
    assert found.speedup == 4.0  # of 4.0, 4.1 and 3.5, against the faster way to run the baseline
    assert (found.memory, found.memory_one_by_one) == (0.25, 0.5)


def test_impossible_settings_are_refused_before_anything_is_measured() -> None:
    with pytest.raises(ValueError, match="grid's 9 cells, got"):
        benchmark.run("tnet_fmow", "efficientnet_b0", [Setting(image=64, locations=(10,))], batch=1, repeats=1)
    with pytest.raises(ValueError, match="which looks at whole images"):
        benchmark.run("bagnet77", "bagnet77", [Setting(image=64, locations=())], batch=1, repeats=1)


def test_the_usual_comparison_is_the_models_own(tmp_path: Path) -> None:
    assert [s.image for s in benchmark.usual_settings("tnet_fmow")] == [448, 896]
    foveate.save(foveate.create_model("tnet_imagenet", num_classes=3), tmp_path)
    assert benchmark.usual_settings(str(tmp_path)) == [Setting(image=224, locations=(3,))]
    assert benchmark._open_whole(str(tmp_path)).config.backbone == "bagnet77"
    assert [case.model for case in benchmark.plan("a", "b", [Setting(image=1, locations=())], 1)] == [
        "a",
        "a",
        "b",
        "b",
    ]


@pytest.mark.slow
def test_the_promised_figures_hold() -> None:
    """The walk within 5 % of the limit, three times as fast as the whole image, and 0.35 of its memory."""
    settings = [Setting(image=896, locations=(2, 1))]
    result = benchmark.run("tnet_fmow", "efficientnet_b0", settings, batch=16, repeats=9)
    (found,) = result.ratios
    assert found.walk_over_limit <= 1.05
    assert found.speedup >= 3
    assert found.memory <= 0.35
