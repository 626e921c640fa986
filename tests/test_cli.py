from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import foveate
from foveate import cli


def run(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Exit code of a command line, in this process."""
    monkeypatch.setattr(sys, "argv", ["foveate", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


HELP = """
import sys
sys.argv = ["foveate", "--help"]
from foveate.cli import main
try:
    main()
finally:
    assert "torch" not in sys.modules, "--help must not wait for torch"
"""


def test_help_answers_at_once_and_has_examples() -> None:
    shown = python("-c", HELP)
    for command in ("demo", "info", "bench", "convert", "models"):
        assert command in shown
        assert "Example" in python("-m", "foveate.cli", command, "--help")


def python(*arguments: str) -> str:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True).stdout


def test_info_prints_the_papers_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("info", "tnet_fmow", "--image", "896", "--locations", "2,1", monkeypatch=monkeypatch) == 0
    shown = capsys.readouterr().out
    assert "4,517,575 trainable, 4,559,592" in shown
    assert "1.9252" in shown
    assert "1.9367" in shown
    assert "blocks.3" in shown


def test_info_tells_machines_the_same(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (
        "tnet",
        "--backbone",
        "resnet18",
        "--base",
        "128",
        "--grid",
        "3x4",
        "--cell",
        "0.4",
        "--in-chans",
        "5",
    )
    assert run("info", *arguments, "--image", "640x480", "--locations", "3", "--json", monkeypatch=monkeypatch) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["image_size"] == [640, 480]
    assert [row["locations"] for row in told["dial"]] == [[], [1], [2], [3]]
    assert told["in_chans"] == 5
    best = max(told["candidates"], key=lambda candidate: candidate["overlap"])
    assert best["map"] == told["location_map"]


def test_a_grid_may_be_one_number(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("info", "tnet", "--backbone", "resnet18", "--grid", "4", "--json")
    assert run(*arguments, monkeypatch=monkeypatch) == 0
    assert len(json.loads(capsys.readouterr().out)["location_map"]["rows"]) == 4


def test_convert_writes_a_model(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = tmp_path / "names.txt"
    names.write_text("\n".join(f"bird {i}" for i in range(200)))
    arguments = [
        "convert",
        str(checkpoint),
        "--model",
        "tnet_b0",
        "--num-classes",
        "200",
        "--output",
        str(tmp_path / "m"),
    ]
    assert run(*arguments, "--class-names", str(names), monkeypatch=monkeypatch) == 0
    assert "5,558,451 values" in capsys.readouterr().out
    assert foveate.load(tmp_path / "m").config.class_names[199] == "bird 199"
    assert run(*arguments, monkeypatch=monkeypatch) == 2
    assert "output must not hold a model yet" in capsys.readouterr().err
    assert run(*arguments, "--overwrite", "--json", monkeypatch=monkeypatch) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == 5558451


def test_demo_draws_a_walk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("demo", "--output", str(tmp_path), "--locations", "2,1", "--json", monkeypatch=monkeypatch) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [step["level"] for step in shown["steps"]] == [1, 2, 2, 3, 3]
    assert shown["steps"][0]["probability"] is None
    assert sum(step["weight"] for step in shown["steps"]) == pytest.approx(1)
    assert 0 < shown["seen"] < 0.3
    with Image.open(tmp_path / "walk.png") as picture:
        assert picture.size == (1024, 683)
        box = shown["steps"][1]["box"]
        scale = 1024 / 1344
        corner = (round(max(box[0], 0) * scale) + 1, round((box[1] + box[3] / 2) * scale))
        assert picture.getpixel(corner) == (0xE6, 0x9F, 0x00)  # the box's left edge
    assert run("demo", "--output", str(tmp_path), monkeypatch=monkeypatch) == 0
    assert "weights are random" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info", "tnet_b9"], "got 'tnet_b9'; did you mean"),
        (["info", "tnet_b0", "--locations", "a"], "locations must be whole numbers joined by ',', got 'a'"),
        (["info", "tnet_b0", "--locations", "26"], "from 0 to the grid's 25 cells"),
        (["info", "tnet_b0", "--grid", ""], "grid must be a number of cells a side or ROWSxCOLUMNS, got ''"),
        (["info", "tnet_b0", "--cell", "0"], "cell must be a fraction"),
        (["info", "tnet_b0", "--image", "0"], "image must be a side in pixels or WIDTHxHEIGHT, got '0'"),
        (["info", "bagnet77", "--locations", "2"], "locations must be () for a model of the whole image, got (2,)"),
        (["bench", "tnet_fmow", "--at", "896"], "--at must be IMAGE:LOCATIONS such as 896:2,1, got '896'"),
        (["convert", "nowhere", "--model", "tnet_b0", "--num-classes", "2", "--output", "x"], "must have an index"),
        (["demo", "--image", "nowhere.png"], "image must be a file, got no file nowhere.png"),
    ],
)
def test_mistakes_are_told_in_one_line(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments, monkeypatch=monkeypatch) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert told.startswith("foveate: ")


def test_unknown_options_and_commands_exit_with_2(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("info", "tnet_b0", "--nonsense", monkeypatch=monkeypatch) == 2
    assert run("nonsense", monkeypatch=monkeypatch) == 2


def test_failures_exit_with_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(_pattern: str) -> list[str]:
        raise RuntimeError("the disk is on fire\nsecond line")

    monkeypatch.setattr(foveate, "list_models", broken)
    assert run("models", monkeypatch=monkeypatch) == 1
    assert capsys.readouterr().err == "foveate: RuntimeError: the disk is on fire (FOVEATE_DEBUG=1 shows where)\n"


def test_models_and_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("models", "tnet_b*", monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out.split() == [f"tnet_b{i}" for i in range(5)]
    assert run("--version", monkeypatch=monkeypatch) == 0
    assert foveate.__version__ in capsys.readouterr().out
