from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch

import foveate
import foveate.demonstration
from foveate import cli
from foveate.recipes import HOME
from tests.data.pictures import paint


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
    for command in ("demo", "train", "recipes", "data", "info", "bench", "convert", "models"):
        assert command in shown
        own = ("elpv",) if command == "data" else ()
        assert "Example" in python("-m", "foveate.cli", command, *own, "--help")


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
    assert "output must not be there yet" in capsys.readouterr().err
    assert run(*arguments, "--overwrite", "--json", monkeypatch=monkeypatch) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == 5558451


@pytest.mark.gradients
def test_demo_trains_three_models_and_compares_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(foveate.demonstration, "TEST_SCENES", 10)
    arguments = ("demo", "--output", str(tmp_path), "--minutes", "0.01")
    assert run(*arguments, "--json", monkeypatch=monkeypatch) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [len(score["locations"]) for score in shown["scores"]] == [0, 1, 1, 1, 1, 1, 0, 0]
    assert all(Path(picture).is_file() for picture in shown["pictures"])
    assert run(*arguments, monkeypatch=monkeypatch) == 0
    told = capsys.readouterr().out
    assert "whole scene, 512 px" in told
    assert "FLOPs" in told


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of images, and a recipe that learns them in a second."""
    for name, colour in (("blue", (0, 0, 200)), ("red", (200, 0, 0))):
        for number in range(6):
            paint(tmp_path / "photos" / name / f"{number}.png", colour, (40, 40))
    (tmp_path / "own.toml").write_text(
        """
        [model]
        name = "whole_image"
        backbone = "test_efficientnet"
        [data]
        size = 32
        validation = 0.25
        augmentation = "none"
        [schedule]
        epochs = 1
        batch = 4
        [engine]
        workers = 0
        """
    )
    return tmp_path / "photos"


@pytest.mark.gradients
def test_train_makes_a_model_and_resumes(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = (
        "train",
        "--recipe",
        "own.toml",
        "--data",
        str(photos),
        "--output",
        "run",
        "--set",
        "optimizer.lr=1e-4",
    )
    assert run(*arguments, "--json", monkeypatch=monkeypatch) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["steps"] >= 1
    assert foveate.load(outcome["model"]).config.class_names == ("blue", "red")
    assert run("train", "--output", "run", "--resume", monkeypatch=monkeypatch) == 0
    assert "-> run/model" in capsys.readouterr().out.replace("\n", "")
    assert run(*arguments, monkeypatch=monkeypatch) == 2
    assert "--resume goes on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "empty"], "must have a folder for each of at least 2 classes, got"),
        (["--data", "one"], "must have a folder for each of at least 2 classes, got only 'red'"),
        (["--data", "nowhere"], "got no"),
        (["--data", "list.csv"], "row 3 must have a label"),
        (["--data", "photos", "--recipe", "fmow-stag1"], "got 'fmow-stag1'; did you mean fmow-stage1?"),
        (["--data", "photos", "--set", "optimizer.learning_rate=1"], "did you mean optimizer.lr?"),
        (["--data", "photos", "--set", "optimizer.lr=fast"], "optimizer.lr must be"),
        (["--data", "photos", "--init", "nowhere"], "nowhere"),
        (["--data", "photos", "--devices", "0"], "devices must be at least 1, got 0"),
        (["--resume", "--data", "photos"], "--resume must come without --data"),
        (["--resume"], "a run must be a folder with recipe.toml"),
        ([], "must be a folder or a file"),
    ],
)
def test_mistakes_in_training_are_told_in_one_line(
    arguments: list[str],
    message: str,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    paint(tmp_path / "one" / "red" / "1.png")
    (tmp_path / "list.csv").write_text("path,label\nphotos/red/1.png,red\nphotos/blue/1.png,\n")
    own = () if "--recipe" in arguments or "--resume" in arguments else ("--recipe", "own.toml")
    assert photos.is_dir()
    assert run("train", "--output", "run", *own, *arguments, monkeypatch=monkeypatch) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_recipes_are_listed_and_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("recipes", monkeypatch=monkeypatch) == 0
    assert "fmow-stage2" in capsys.readouterr().out
    assert run("recipes", "--json", monkeypatch=monkeypatch) == 0
    listed = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert listed["cub-tnet-b0"]["expected"].startswith("top-1")
    assert run("recipes", "fmow-stage2", monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == (HOME / "fmow-stage2.toml").read_text()
    assert run("recipes", "fmow-stage2", "--json", monkeypatch=monkeypatch) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["objective"]["cap"] == 2


def test_elpv_says_whose_the_cells_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("data", "elpv", str(tmp_path / "solar"), "--cells", str(tmp_path), monkeypatch=monkeypatch) == 2
    told = capsys.readouterr().err
    assert "not for commercial use" in told
    assert "must hold the labels.csv of elpv-dataset" in told


def test_convert_writes_a_backbone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(timm.create_model("test_efficientnet").state_dict(), "weights.pth")
    arguments = ("convert", "weights.pth", "--model", "test_efficientnet", "--output", "weights.safetensors")
    assert run(*arguments, "--json", monkeypatch=monkeypatch) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] > 0
    assert run(*arguments, monkeypatch=monkeypatch) == 2
    assert "give --overwrite" in capsys.readouterr().err


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
        (["demo", "--garments", "nowhere"], "Fashion-MNIST must be in nowhere, got no"),
        (["convert", "nowhere", "--model", "tnet_b0", "--output", "x"], "--num-classes must be given"),
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
