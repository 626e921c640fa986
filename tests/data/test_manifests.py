from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from foveate.data.manifests import Row, read_manifest


def write(folder: Path, *lines: str, encoding: str = "utf-8") -> Path:
    path = folder / "list.csv"
    path.write_text("\n".join(lines) + "\n", encoding=encoding)
    return path


def write_parquet(folder: Path, **columns: list[Any]) -> Path:
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "list.parquet")
    return folder / "list.parquet"


def test_rows_are_read_as_they_are(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "label, path ,split,left,top,width,height,remark",
        "cat,a/1.png,train,,,,,",
        "",
        'dog,"b, c.png", Valid ,1,2.5,3,4,"two',
        'lines"',
        "cat,d.png,TEST,-1,0,9,9,",
    )
    assert read_manifest(path) == [
        Row(2, "a/1.png", "cat", "train", None),
        Row(5, "b, c.png", "dog", "validation", (1.0, 2.5, 3.0, 4.0)),
        Row(6, "d.png", "cat", "test", (-1.0, 0.0, 9.0, 9.0)),
    ]


def test_without_splits_and_boxes_there_are_none(tmp_path: Path) -> None:
    path = write(tmp_path, "path,label", "a.png,1", encoding="utf-8-sig")
    assert read_manifest(path) == [Row(2, "a.png", "1", None, None)]


def test_parquet_says_the_same(tmp_path: Path) -> None:
    path = write_parquet(
        tmp_path,
        path=["a.png", "b.png"],
        label=[7, 8],
        split=["train", "val"],
        left=[None, 1],
        top=[None, 2],
        width=[None, 3],
        height=[None, 4],
        other=[b"", b""],
    )
    assert read_manifest(path) == [
        Row(1, "a.png", "7", "train", None),
        Row(2, "b.png", "8", "validation", (1.0, 2.0, 3.0, 4.0)),
    ]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["path,lable", "a,b"], r"must have a column 'label', got 'path', 'lable'; is it the one called 'lable'\?"),
        (["Path,label", "a,b"], r"must have a column 'path', got 'Path', 'label'; is it the one called 'Path'\?"),
        (["image,label", "a,b"], "must have a column 'path', got 'image', 'label'$"),
        (["path,label,label", "a,b,c"], "must have each column once, got 'label' 2 times"),
        (["path,label,left,top", "a,b,1,2"], "must have all of the columns left, top, width, height, got left, top"),
        (["path,label", "a,b", "c"], "row 3 must have 2 fields, got 1"),
        (["path,label", "a,b", "c,d,e"], "row 3 must have 2 fields, got 3"),
        (["path,label", "a, "], "row 2 must have a label, got nothing"),
        (["path,label", ",b"], "row 2 must have a path, got nothing"),
        (
            ["path,label,split", "a,b,"],
            "row 2 must have one of the splits train, val, valid, validation, test, got",
        ),
        (["path,label,split", "a,b,dev"], "must have one of the splits .*, got 'dev'"),
        (["path,label,left,top,width,height", "a,b,1,2,3,"], "row 2 must have four numbers for its box or none"),
        (["path,label,left,top,width,height", "a,b,1,2,3,x"], "row 2 must have four numbers for its box or none"),
        (["path,label,left,top,width,height", "a,b,1,2,0,4"], "row 2 must have a box of some width and height"),
        (["path,label,left,top,width,height", "a,b,nan,2,1,4"], "row 2 must have a box of some width and height"),
        (["path,label"], "must have at least one row, got none"),
        ([""], "must have a column 'path', got none"),
    ],
)
def test_what_is_wrong_with_a_row_is_told(lines: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_manifest(write(tmp_path, *lines))
    assert str(tmp_path / "list.csv") in str(caught.value)


def test_parquet_errors_name_the_row_and_the_column(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"list.parquet, row 2 must have a label, got nothing"):
        read_manifest(write_parquet(tmp_path, path=["a", "b"], label=["x", None]))
    with pytest.raises(ValueError, match=r"must have a column 'label', got 'path', 'labels'; is it .* 'labels'"):
        read_manifest(write_parquet(tmp_path, path=["a"], labels=["x"]))


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="manifest must be a CSV or Parquet file, got no file"):
        read_manifest(tmp_path / "list.csv")
    (tmp_path / "list.txt").write_text("path,label\na,b\n")
    with pytest.raises(ValueError, match=r"manifest must be a CSV or Parquet file, got .*list.txt"):
        read_manifest(tmp_path / "list.txt")
    (tmp_path / "list.parquet").write_bytes(b"path,label\na,b\n")
    with pytest.raises(ValueError, match="must be a Parquet file, got something else"):
        read_manifest(tmp_path / "list.parquet")
    (tmp_path / "list.csv").write_bytes(b"path,label\na,\xff\xfe\n")
    with pytest.raises(ValueError, match="must be CSV in UTF-8, got something else"):
        read_manifest(tmp_path / "list.csv")
