"""The files in ``tests/data/matlab`` were written by scipy.io.savemat, which is no part of this project.

train_list and test_list have the variables of Stanford Dogs' lists, meta those of ImageNet's development kit that are
needed and two others; test_list is not compressed.
"""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

import pytest

from foveate.data import matlab
from foveate.data.matlab import read_mat

FILES = Path(__file__).parent / "matlab"
TRAINED = [f"n02085620-Chihuahua/n02085620_{number}" for number in (5927, 3441, 1152)]
TRAINED += [f"n02085782-Japanese_spaniel/n02085782_{number}" for number in (1, 9)]


def test_lists_are_read_as_scipy_wrote_them() -> None:
    train = read_mat(FILES / "train_list.mat")
    assert list(train) == ["file_list", "annotation_list", "labels"]
    assert train["annotation_list"] == TRAINED
    assert train["file_list"] == [f"{name}.jpg" for name in TRAINED]
    assert train["labels"] == [1, 1, 1, 2, 2]
    test = read_mat(FILES / "test_list.mat")
    assert test["file_list"] == [
        "n02085620-Chihuahua/n02085620_2650.jpg",
        "n02085782-Japanese_spaniel/n02085782_7.jpg",
    ]
    assert test["labels"] == [1, 2]


def test_structures_are_dicts() -> None:
    names = ("ILSVRC2012_ID", "WNID", "words", "children")
    rows = [
        ([1], "n02000002", "later, aft", []),
        ([2], "n01000001", "fürst", []),
        ([3], "n03000003", "a group", [1, 2]),
    ]
    assert read_mat(FILES / "meta.mat") == {"synsets": [dict(zip(names, row, strict=True)) for row in rows]}


def element(order: str, kind: int, data: bytes) -> bytes:
    if 0 < len(data) <= 4:
        return struct.pack(f"{order}I", len(data) << 16 | kind) + data.ljust(4, b"\0")
    return struct.pack(f"{order}II", kind, len(data)) + data + b"\0" * (-len(data) % 8)


def variable(order: str, name: str, what: int, shape: tuple[int, ...], *data: bytes) -> bytes:
    parts = [
        element(order, 6, struct.pack(f"{order}II", what, 0)),
        element(order, 5, struct.pack(f"{order}{len(shape)}i", *shape)),
        element(order, 1, name.encode()),
        *data,
    ]
    return element(order, 14, b"".join(parts))


def write(folder: Path, order: str, *variables: bytes) -> Path:
    head = b"MATLAB 5.0 MAT-file".ljust(124) + {"<": b"\x00\x01IM", ">": b"\x01\x00MI"}[order]
    (folder / "made.mat").write_bytes(head + b"".join(variables))
    return folder / "made.mat"


@pytest.mark.parametrize("order", "<>")
def test_as_matlab_itself_writes(order: str, tmp_path: Path) -> None:
    """In both orders of bytes, text in 16 bits, numbers in fewer bits than they have, small elements."""
    path = write(
        tmp_path,
        order,
        variable(
            order, "text", 4, (1, 4), element(order, 4, "añé!".encode({"<": "utf-16-le", ">": "utf-16-be"}[order]))
        ),
        variable(order, "doubles", 6, (2, 2), element(order, 3, struct.pack(f"{order}4h", 1, -2, 300, 4))),
        variable(order, "short", 6, (1, 1), element(order, 2, b"\x07")),
        variable(order, "none", 6, (0, 0), element(order, 9, b"")),
        variable(
            order, "cell", 1, (1, 2), element(order, 14, b""), variable(order, "", 4, (1, 1), element(order, 1, b"x"))
        ),
    )
    assert read_mat(path) == {"text": "añé!", "doubles": [1, -2, 300, 4], "short": [7], "none": [], "cell": [[], "x"]}


def test_other_files_are_refused(tmp_path: Path) -> None:
    for content in (b"", b"words" * 50, b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + b"\x89HDF"):
        (tmp_path / "other.mat").write_bytes(content)
        with pytest.raises(ValueError, match=r"other.mat must be a MATLAB file of level 5 .*, got another format"):
            read_mat(tmp_path / "other.mat")


def test_what_is_not_for_lists_is_refused(tmp_path: Path) -> None:
    number = element("<", 9, struct.pack("<d", 1))
    for wrong, reason in (
        (variable("<", "a", 6 | 1 << 11, (1, 1), number, number), "an array of class 2054"),
        (variable("<", "a", 5, (1, 1), number), "an array of class 5"),
        (variable("<", "a", 6, (2, 1), number), r"1 values in an array of shape \[2, 1\]"),
        (variable("<", "a", 1, (2**31 - 1, 2**31 - 1)), "0 values in an array of shape"),
        (element("<", 9, b"12345678"), "a variable stored as type 9"),
        (element("<", 14, b"")[:-4], "unpack_from requires"),
    ):
        with pytest.raises(
            ValueError, match=rf"must be a whole MATLAB file of lists, got something else: .*{reason}"
        ):
            read_mat(write(tmp_path, "<", wrong))


def test_bombs_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matlab, "MOST_BYTES", 1000)
    packed = zlib.compress(variable("<", "a", 6, (1, 2000), element("<", 2, bytes(2000))))
    path = write(tmp_path, "<", struct.pack("<II", 15, len(packed)) + packed)
    with pytest.raises(ValueError, match="is cut off or has more than 1000 bytes"):
        read_mat(path)


def test_cells_in_cells_without_end_are_refused(tmp_path: Path) -> None:
    body = b""
    for _ in range(3000):
        body = variable("<", "", 1, (1, 1), body)
    with pytest.raises(ValueError, match="must be a whole MATLAB file of lists"):
        read_mat(write(tmp_path, "<", body))


def read_or_refuse(path: Path) -> dict[str, matlab.Value] | None:
    try:
        return read_mat(path)
    except ValueError as error:
        if not str(error).startswith(f"{path} must be a "):
            raise
        return None


@pytest.mark.parametrize("name", ["train_list", "test_list", "meta"])
def test_damage_is_always_told_in_one_way(name: str, tmp_path: Path) -> None:
    whole, wanted = (FILES / f"{name}.mat").read_bytes(), read_mat(FILES / f"{name}.mat")
    path = tmp_path / "damaged.mat"
    for length in range(0, len(whole), 5):
        path.write_bytes(whole[:length])
        found = read_or_refuse(path)
        assert found is None or list(found.items()) == list(wanted.items())[: len(found)]
    draw = random.Random(0)
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[draw.randrange(128, len(whole))] = draw.randrange(256)
        path.write_bytes(damaged)
        read_or_refuse(path)
