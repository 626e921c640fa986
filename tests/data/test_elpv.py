from __future__ import annotations

import csv
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from foveate.data.elpv import (
    COLUMNS,
    ROWS,
    Bytes,
    Cell,
    SolarModules,
    build_modules,
    find_cells,
    read_labels,
    split_cells,
)
from foveate.data.examples import SPLITS, Example

SIDE = 6


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The layout of the package: cells of one grey tone and a bright corner, poly darker than mono, defects dark."""
    package = tmp_path_factory.mktemp("site") / "elpv_dataset"
    images = package / "data" / "images"
    images.mkdir(parents=True)
    draw, lines = np.random.default_rng(0), []
    for number in range(600):
        kind, defective = ("mono", "poly")[number % 2], number % 10 > 7
        probability = 1.0 if defective else 1 / 3 if number % 40 == 0 else 0.0
        pixels = draw.integers(0, 20, (SIDE, SIDE)).astype(np.uint8) + (
            30 if defective else 100 if number % 2 else 200
        )
        pixels[0, 0] = 255
        Image.fromarray(pixels.astype(np.uint8)).save(images / f"cell{number:04d}.png")
        lines.append(f"images/cell{number:04d}.png  {probability}                {kind}")
    (package / "data" / "labels.csv").write_text("\n".join(lines) + "\n")
    (package / "__init__.py").write_text("raise RuntimeError('the package must not be imported')\n")
    return package


@pytest.fixture(scope="session")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("built") / "solar"
    build_modules(source, output, counts={"train": 2, "validation": 3, "test": 6})
    return output


def cells_of(example: Example) -> Bytes:
    """The 24 cells of a module, row by row: written independently of how modules are put together."""
    assert isinstance(example.image, torch.Tensor)
    image = example.image[0].numpy()
    found = [
        image[top : top + SIDE, left : left + SIDE]
        for top in range(0, ROWS * SIDE, SIDE)
        for left in range(0, COLUMNS * SIDE, SIDE)
    ]
    return np.stack(found)


def files_of(folder: Path, split: str) -> dict[bytes, dict[str, str]]:
    """A split's cells: pixels -> their line in the list."""
    with (folder / "cells.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == split]
    return {np.asarray(Image.open(folder / row["path"])).tobytes(): row for row in rows}


def test_a_module_is_24_cells_of_its_split_and_type_and_at_most_one_is_defective(built: Path) -> None:
    for split in SPLITS:
        files, modules = files_of(built, split), SolarModules(built, split, 20)
        kinds = set()
        for index in range(20):
            module = modules[index]
            cells = [files[cell.tobytes()] for cell in cells_of(module)]
            assert len({row["path"] for row in cells}) == 24
            assert len({row["type"] for row in cells}) == 1
            assert sum(float(row["probability"]) for row in cells) == module.label == index % 2
            assert (module.image.shape, module.boxes.shape) == ((1, 6 * SIDE, 4 * SIDE), (module.label, 4))
            for left, top, width, height in module.boxes.tolist():
                assert (width, height) == (SIDE, SIDE)
                assert cells[top // SIDE * COLUMNS + left // SIDE]["probability"] == "1"
            kinds.add(cells[0]["type"])
        assert kinds == {"mono", "poly"}


def test_no_cell_is_in_two_splits_and_uncertain_ones_are_in_none(source: Path, built: Path) -> None:
    parts = [set(files_of(built, split)) for split in SPLITS]
    assert len(set.union(*parts)) == sum(map(len, parts)) == 585
    labels = read_labels(source / "data")
    dealt = split_cells(labels)
    for kind in ("mono", "poly"):
        for probability in (0.0, 1.0):
            stratum = Cell("", probability, kind)
            each = [sum((c.kind, c.probability) == (kind, probability) for c in dealt[split]) for split in SPLITS]
            assert np.allclose(each, np.array([0.60, 0.15, 0.25]) * sum(each), atol=1), stratum
    assert split_cells(labels[::-1]) == dealt
    assert split_cells(labels, seed=1) != dealt


def test_a_module_is_the_same_whenever_it_is_drawn(built: Path) -> None:
    few, many = SolarModules(built, "train", 8, seed=3), SolarModules(built, "train", 50, seed=3)
    last = many[7]
    for index in (0, 7):
        assert (cells_of(few[index]) == cells_of(many[index])).all()
    assert (cells_of(many[7]) == cells_of(last)).all()
    for other in (SolarModules(built, "train", 8, seed=4)[7], many[9]):
        assert (cells_of(many[7]) != cells_of(other)).any()


def test_flips_mirror_each_cell_by_itself_and_change_nothing_else(built: Path) -> None:
    plain, flipped = SolarModules(built, "train", 4), SolarModules(built, "train", 4, flips=True)
    seen = set()
    for index in range(4):
        for before, after in zip(cells_of(plain[index]), cells_of(flipped[index]), strict=True):
            ways = {"as is": before, "across": before[:, ::-1], "down": before[::-1], "both": before[::-1, ::-1]}
            (way,) = [name for name, cell in ways.items() if (cell == after).all()]
            seen.add(way)
        assert torch.equal(plain[index].boxes, flipped[index].boxes)
    assert seen == {"as is", "across", "down", "both"}


def test_stored_modules_are_those_that_are_drawn(built: Path) -> None:
    with (built / "manifest.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["split"] for row in rows] == ["train"] * 2 + ["validation"] * 3 + ["test"] * 6
    modules = SolarModules(built, "test", 6)
    for index, row in enumerate(rows[5:]):
        module = modules[index]
        assert row["path"] == f"modules/{module.name}.png"
        assert isinstance(module.image, torch.Tensor)
        assert (np.asarray(Image.open(built / row["path"])) == module.image[0].numpy()).all()
        box = [row[key] for key in ("left", "top", "width", "height")]
        assert (int(row["label"]), box) == (
            module.label,
            [str(v) for v in module.boxes.flatten().tolist()] or [""] * 4,
        )
    assert "CC BY-NC-SA" in (built / "README.txt").read_text()


def test_an_interrupted_build_leaves_nothing_that_looks_whole_and_is_redone(
    source: Path, built: Path, tmp_path: Path
) -> None:
    counts = {"train": 2, "validation": 3, "test": 6}

    def stop(what: str) -> None:
        if what == "modules/test/0003.png":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_modules(source, tmp_path / "solar", counts=counts, advance=stop)
    assert not (tmp_path / "solar").exists()
    steps: list[str] = []
    build_modules(source, tmp_path / "solar", counts=counts, advance=steps.append)
    assert (len(steps), steps[0]) == (11, "modules/train/0000.png")
    files = [path.relative_to(built) for path in sorted(built.rglob("*")) if path.is_file()]
    assert len(files) == 585 + 11 + 3
    assert all((tmp_path / "solar" / path).read_bytes() == (built / path).read_bytes() for path in files)
    assert [path.name for path in tmp_path.iterdir()] == ["solar"]
    with pytest.raises(FileExistsError, match="a new or an empty folder"):
        build_modules(source, tmp_path / "solar", counts=counts)


def test_the_package_is_found_without_importing_it(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setattr(sys, "path", [])
        importlib.invalidate_caches()
        with pytest.raises(FileNotFoundError, match=r"pip install elpv-dataset.*no commercial use"):
            find_cells()
    monkeypatch.syspath_prepend(str(source.parent))
    assert find_cells() == source / "data"
    assert "elpv_dataset" not in sys.modules
    assert find_cells(source.parent) == find_cells(source) == find_cells(source / "data") == source / "data"
    with pytest.raises(FileNotFoundError, match=r"must hold the labels\.csv"):
        find_cells(source / "data" / "images")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("images/a.png 0.0", "a path, a probability and a type in each line, got 'images/a.png 0.0' in line 2"),
        ("images/a.png often mono", "in line 2"),
        ("../a.png 0.0 mono", r"below its own folder, got '\.\./a\.png' in line 2"),
        ("/a.png 0.0 mono", "below its own folder"),
    ],
)
def test_wrong_lists_are_refused(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "labels.csv").write_text(f"images/b.png 0.0 mono\n{line}\n")
    with pytest.raises(ValueError, match=message):
        read_labels(tmp_path)


def test_wrong_cells_are_refused(source: Path, built: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="what `foveate data elpv` wrote"):
        SolarModules(source, "test", 5)
    with pytest.raises(IndexError, match="one of 5, got 5"):
        SolarModules(built, "test", 5)[5]
    few = tmp_path / "few"
    (few / "images").mkdir(parents=True)
    for number in range(40):
        Image.new("L", (SIDE, SIDE)).save(few / "images" / f"{number}.png")
    (few / "labels.csv").write_text("".join(f"images/{n}.png {n % 2}.0 mono\n" for n in range(40)))
    with pytest.raises(ValueError, match=r"24 good cells and a defective one of type mono, got \(12, 12\)"):
        build_modules(few, tmp_path / "out", counts={"train": 1})
    (few / "labels.csv").write_text("".join(f"images/{n}.png 0.3 mono\n" for n in range(40)))
    with pytest.raises(ValueError, match="must list cells of train, got none"):
        build_modules(few, tmp_path / "out", counts={"train": 1})
    for wrong, message in (
        (Image.new("L", (SIDE, 9)), "squares of one size"),
        (Image.new("RGB", (SIDE, SIDE)), "grey with 8 bits, got RGB"),
    ):
        lines = "".join(f"images/{n}.png {n % 2}.0 mono\n" for n in range(40))
        (few / "labels.csv").write_text(lines)
        for number in range(40):
            wrong.save(few / "images" / f"{number}.png")
        Image.new("L", (SIDE, SIDE)).save(few / "images" / "0.png")
        with pytest.raises(ValueError, match=message):
            build_modules(few, tmp_path / "out", counts={"train": 1})
