"""Lists of images as tables: a CSV or Parquet file with the columns path, label, and what else is known."""

from __future__ import annotations

import csv
import difflib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foveate.data.examples import Split
from foveate.data.splits import SPLIT_NAMES

BOX_COLUMNS = ("left", "top", "width", "height")
COLUMNS = ("path", "label", "split", *BOX_COLUMNS)

Cells = tuple[int, Sequence[Any]]  # a row's number, and what it holds


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a list; rows are counted as an editor counts a CSV file's lines, and from 1 in Parquet."""

    number: int
    path: str
    label: str
    split: Split | None
    box: tuple[float, float, float, float] | None


def read_manifest(path: Path) -> list[Row]:
    """The rows of a list, each with a path and a label; errors tell the row."""
    if not path.is_file():
        raise FileNotFoundError(f"manifest must be a CSV or Parquet file, got no file {path}")
    if path.suffix.casefold() not in (".csv", ".parquet"):
        raise ValueError(f"manifest must be a CSV or Parquet file, got {path}")
    names, cells = _read_csv(path) if path.suffix.casefold() == ".csv" else _read_parquet(path)
    _check_columns(path, names)
    rows = [_row(path, number, dict(zip(names, values, strict=True))) for number, values in cells]
    if not rows:
        raise ValueError(f"{path} must have at least one row, got none")
    return rows


def _read_csv(path: Path) -> tuple[list[str], list[Cells]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets begin files with a byte order mark
            reader = csv.reader(file)
            lines = [(reader.line_num, line) for line in reader if line]
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be CSV in UTF-8, got something else: {error}") from error
    names = [name.strip() for name in lines[0][1]] if lines else []
    for number, line in lines[1:]:
        if len(line) != len(names):
            raise ValueError(f"{path}, row {number} must have {len(names)} fields, got {len(line)}")
    return names, list(lines[1:])


def _read_parquet(path: Path) -> tuple[list[str], list[Cells]]:
    # Imported where it is needed: it takes half a second that no other data set should wait for.
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    try:
        names = list(pyarrow.parquet.read_schema(path).names)
        wanted = [name for name in names if name in COLUMNS]
        table = pyarrow.parquet.read_table(path, columns=wanted)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} must be a Parquet file, got something else: {error}") from error
    if not {"path", "label"} <= set(wanted):
        return names, []  # all of the names: one of them may be what was meant
    columns = [column.to_pylist() for column in table.columns]
    return wanted, list(enumerate(zip(*columns, strict=True), start=1))


def _check_columns(path: Path, names: Sequence[str]) -> None:
    twice = [name for name in COLUMNS if names.count(name) > 1]
    if twice:
        raise ValueError(f"{path} must have each column once, got {twice[0]!r} {names.count(twice[0])} times")
    for name in ("path", "label"):
        if name not in names:
            near = difflib.get_close_matches(name, [other.casefold() for other in names], n=1, cutoff=0.5)
            hint = f"; is it the one called {_spelled(near[0], names)!r}?" if near else ""
            raise ValueError(f"{path} must have a column {name!r}, got {', '.join(map(repr, names)) or 'none'}{hint}")
    boxes = [name for name in BOX_COLUMNS if name in names]
    if boxes and len(boxes) < len(BOX_COLUMNS):
        raise ValueError(f"{path} must have all of the columns {', '.join(BOX_COLUMNS)}, got {', '.join(boxes)}")


def _spelled(folded: str, names: Iterable[str]) -> str:
    return next(name for name in names if name.casefold() == folded)


def _row(path: Path, number: int, cells: dict[str, Any]) -> Row:
    texts = {name: "" if value is None else str(value).strip() for name, value in cells.items()}
    for name in ("path", "label"):
        if not texts[name]:
            raise ValueError(f"{path}, row {number} must have a {name}, got nothing")
    split = SPLIT_NAMES.get(texts.get("split", "train").casefold())
    if split is None:
        raise ValueError(
            f"{path}, row {number} must have one of the splits {', '.join(SPLIT_NAMES)}, got {texts['split']!r}"
        )
    box = _box(f"{path}, row {number}", [texts.get(name, "") for name in BOX_COLUMNS])
    return Row(number, texts["path"], texts["label"], split if "split" in texts else None, box)


def _box(where: str, texts: Sequence[str]) -> tuple[float, float, float, float] | None:
    """Left, top, width, height; none where all four are empty."""
    if not any(texts):
        return None
    try:
        left, top, width, height = (float(text) for text in texts)
    except ValueError as error:
        raise ValueError(f"{where} must have four numbers for its box or none, got {texts}") from error
    if not all(map(math.isfinite, (left, top, width, height))) or width <= 0 or height <= 0:
        raise ValueError(f"{where} must have a box of some width and height, got {texts}")
    return left, top, width, height
