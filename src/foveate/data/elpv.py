"""Solar modules put together from real cells: six rows of four, of which at most one cell is defective.

The cells are those of the PyPI package ``elpv-dataset`` (licence CC BY-NC-SA 4.0: no commercial use). They are never
part of this package: ``build_modules`` takes them from where the user installed them.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import Dataset

from foveate.data.examples import SPLITS, Example, Split

ROWS, COLUMNS = 6, 4
SHARES: Mapping[Split, float] = {"train": 0.60, "validation": 0.15, "test": 0.25}
COUNTS: Mapping[Split, int] = {"train": 200, "validation": 100, "test": 400}
GOOD, DEFECTIVE = 0.0, 1.0
PACKAGE = "elpv_dataset"
INDEX, MANIFEST, NOTICE = "cells.csv", "manifest.csv", "README.txt"
LICENCE = """\
Solar modules of real cells, put together by `foveate data elpv`.

The cells are photographs of the ELPV dataset (PyPI package elpv-dataset), copyright of their authors, under the
licence Creative Commons Attribution-NonCommercial-ShareAlike 4.0 International (CC BY-NC-SA 4.0,
creativecommons.org/licenses/by-nc-sa/4.0): not for commercial use. What is made from them is under that same licence,
and so are all images in this folder. Please cite:

  Buerhop-Lutz et al., A Benchmark for Visual Identification of Defective Solar Cells in Electroluminescence Imagery,
    EU PVSEC 2018. doi:10.4229/35thEUPVSEC20182018-5CV.3.15
  Deitsch et al., Automatic classification of defective photovoltaic module cells in electroluminescence images,
    Solar Energy 185, 2019. doi:10.1016/j.solener.2019.02.067
  Deitsch et al., Segmentation of photovoltaic module cells in uncalibrated electroluminescence images,
    Machine Vision and Applications 32(4), 2021. doi:10.1007/s00138-021-01191-9

What was changed: cells were put together to modules of 6 rows and 4 columns that never existed. A module has cells of
one type (mono- or polycrystalline) and is labelled 1 when one of its cells is defective (probability 1), 0 when all
are good (probability 0). Cells of which the annotators were not sure (1/3 and 2/3) are left out. Cells were dealt to
train, validation and test one by one, equally many of each type and label in proportion; the dataset does not tell
which cells come from the same real module.

  cells/         the cells of each split, unchanged; cells.csv lists them
  modules/       fixed modules of each split, lossless; manifest.csv has their labels, and the box of the defective
                 cell (for evaluation only)
"""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: its file below the list's folder, how likely it is defective, and its type, mono or poly."""

    path: str
    probability: float
    kind: str


class SolarModules(Dataset[Example]):
    """``count`` modules of a split's cells; module i is the same whenever, wherever and in any order it is drawn.

    Every other module, from the second, has a defective cell. With ``flips`` each cell is mirrored at random.
    """

    classes: Sequence[str] = ("good", "defective")

    def __init__(self, folder: str | Path, split: Split, count: int, *, seed: int = 0, flips: bool = False) -> None:
        self.split, self.count, self.seed, self.flips = split, count, seed, flips
        self.cells = _read_pools(Path(folder), split)
        self.kinds = sorted({kind for kind, _ in self.cells})

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < self.count:
            raise IndexError(f"module must be one of {self.count}, got {index}")
        draw = np.random.default_rng([self.seed, index, SPLITS.index(self.split)])
        label = index % 2
        kind = self.kinds[draw.integers(len(self.kinds))]
        good, defective = self.cells[kind, GOOD], self.cells[kind, DEFECTIVE]
        chosen = good[draw.choice(len(good), ROWS * COLUMNS, replace=False)]  # (24, side, side)
        place, other = int(draw.integers(ROWS * COLUMNS)), int(draw.integers(len(defective)))
        side, boxes = chosen.shape[1], []
        if label:
            chosen[place] = defective[other]
            boxes = [(place % COLUMNS * side, place // COLUMNS * side, side, side)]
        if self.flips:
            chosen = _mirror(chosen, draw)
        pixels = chosen.reshape(ROWS, COLUMNS, side, side).swapaxes(1, 2).reshape(1, ROWS * side, COLUMNS * side)
        where = torch.tensor(boxes, dtype=torch.long).reshape(-1, 4)
        return Example(torch.from_numpy(pixels), label, where, f"{self.split}/{index:04d}")


def _mirror(cells: Bytes, draw: np.random.Generator) -> Bytes:
    """Each of (N, side, side) upside down or not, and left to right or not."""
    across, down = draw.integers(0, 2, (2, len(cells), 1, 1), dtype=np.uint8).astype(bool)
    cells = np.where(across, cells[:, :, ::-1], cells)
    return np.where(down, cells[:, ::-1], cells)


def find_cells(source: str | Path | None = None) -> Path:
    """The folder with labels.csv and the images: in ``source`` or the installed package, which is not imported."""
    if source is None:
        spec = importlib.util.find_spec(PACKAGE)
        if spec is None or not spec.submodule_search_locations:
            raise FileNotFoundError(
                "the cells must be installed, got no package elpv-dataset: pip install elpv-dataset "
                "(licence CC BY-NC-SA 4.0, no commercial use), or name the folder that holds its labels.csv"
            )
        source = spec.submodule_search_locations[0]
    for folder in (Path(source), Path(source, "data"), Path(source, PACKAGE, "data")):
        if (folder / "labels.csv").is_file():
            return folder
    raise FileNotFoundError(f"{source} must hold the labels.csv of elpv-dataset and its images, got no labels.csv")


def read_labels(folder: Path) -> list[Cell]:
    """The cells that labels.csv lists: a path, a probability and a type in each line, apart by spaces."""
    cells = []
    for number, line in enumerate((folder / "labels.csv").read_text(encoding="utf-8").splitlines(), 1):
        try:
            path, probability, kind = line.split()
            cells.append(Cell(path, float(probability), kind))
        except ValueError:
            raise ValueError(
                f"labels.csv must have a path, a probability and a type in each line, got {line!r} in line {number}"
            ) from None
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise ValueError(f"labels.csv must name files below its own folder, got {path!r} in line {number}")
    return cells


def split_cells(cells: Sequence[Cell], *, seed: int = 0) -> dict[Split, list[Cell]]:
    """Deals the good and the defective cells of each type to the splits in the same proportions.

    The order is that of a hash of the seed and the cell's name, so that it depends on nothing else.
    """
    strata: dict[tuple[str, float], list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.probability in (GOOD, DEFECTIVE):
            strata[cell.kind, cell.probability].append(cell)
    dealt: dict[Split, list[Cell]] = {split: [] for split in SPLITS}
    for stratum in strata.values():
        stratum.sort(key=lambda cell: hashlib.sha256(f"{seed} {cell.path}".encode()).digest())
        start, share = 0, 0.0
        for split in SPLITS:
            share += SHARES[split]
            end = round(share * len(stratum))
            dealt[split] += stratum[start:end]
            start = end
    return {split: sorted(chosen, key=lambda cell: cell.path) for split, chosen in dealt.items()}


def build_modules(
    cells_folder: str | Path | None,
    output: str | Path,
    *,
    seed: int = 0,
    counts: Mapping[Split, int] = COUNTS,
    advance: Callable[[str], None] = lambda _what: None,
) -> None:
    """Writes the cells of each split, and ``counts`` fixed modules of each, to a new folder.

    The folder appears when everything is in it; what an interrupted build left beside it is removed by the next.
    ``advance`` is told of each module before it is drawn.
    """
    source, output = find_cells(cells_folder), Path(output).resolve()
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise FileExistsError(f"output must be a new or an empty folder, got {output}")
    dealt = split_cells(read_labels(source), seed=seed)
    aside = output.with_name(f"{output.name}.building")
    shutil.rmtree(aside, ignore_errors=True)
    _copy_cells(source, aside, dealt)
    (aside / NOTICE).write_text(LICENCE, encoding="utf-8")
    rows = [
        row
        for split in SPLITS
        for row in _write_modules(SolarModules(aside, split, counts.get(split, 0), seed=seed), aside, advance)
    ]
    header = ("path", "label", "split", "left", "top", "width", "height")
    _write_table(aside / MANIFEST, header, rows)
    if output.exists():
        output.rmdir()
    aside.rename(output)


def _copy_cells(source: Path, target: Path, dealt: Mapping[Split, Sequence[Cell]]) -> None:
    rows = []
    for split, cells in dealt.items():
        folder = target / "cells" / split
        folder.mkdir(parents=True)
        for cell in cells:
            name = PurePosixPath(cell.path).name
            shutil.copyfile(source / cell.path, folder / name)
            rows.append((f"cells/{split}/{name}", split, f"{cell.probability:g}", cell.kind))
    _write_table(target / INDEX, ("path", "split", "probability", "type"), rows)


def _write_modules(modules: SolarModules, target: Path, advance: Callable[[str], None]) -> list[tuple[str, ...]]:
    """Lossless, so that a stored module and the same one drawn again are equal; barely packed, which is much faster.

    A module takes 1.0 MB, at PNG's usual level 0.9 MB and five times as long, as JPEG of quality 95 0.5 MB.
    """
    folder = target / "modules" / modules.split
    folder.mkdir(parents=True)
    rows = []
    for index in range(len(modules)):
        path = f"modules/{modules.split}/{index:04d}.png"
        advance(path)
        module = modules[index]
        assert isinstance(module.image, torch.Tensor)
        Image.fromarray(module.image[0].numpy()).save(target / path, compress_level=1)
        box = [str(value) for value in module.boxes.flatten().tolist()] or [""] * 4
        rows.append((path, str(module.label), modules.split, *box))
    return rows


def _write_table(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows((header, *rows))


def _read_pools(folder: Path, split: Split) -> dict[tuple[str, float], Bytes]:
    """A split's cells (N, side, side) by type and probability; there must be enough of each for a module."""
    index = folder / INDEX
    if not index.is_file():
        raise FileNotFoundError(f"{folder} must be what `foveate data elpv` wrote, got no {INDEX} in it")
    with index.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == split]
    images: dict[tuple[str, float], list[Bytes]] = defaultdict(list)
    for row in rows:
        images[row["type"], float(row["probability"])].append(_read_cell(folder / row["path"]))
    sides = {image.shape for group in images.values() for image in group}
    if len(sides) > 1 or any(height != width for height, width in sides):
        raise ValueError(f"cells must be squares of one size, got {sorted(sides)} (height, width) in {folder}")
    kinds = {kind for kind, _ in images}
    for kind in kinds:
        counts = len(images[kind, GOOD]), len(images[kind, DEFECTIVE])
        if counts[0] < ROWS * COLUMNS or counts[1] < 1:
            raise ValueError(
                f"{split} must have {ROWS * COLUMNS} good cells and a defective one of type {kind}, got {counts}"
            )
    if not kinds:
        raise ValueError(f"{index} must list cells of {split}, got none")
    return {key: np.stack(group) for key, group in images.items()}


def _read_cell(path: Path) -> Bytes:
    with Image.open(path) as file:
        if file.mode != "L":
            raise ValueError(f"cells must be grey with 8 bits, got {file.mode} in {path}")
        return np.array(file)
