from __future__ import annotations

from pathlib import Path

import pytest

from foveate.data.annotations import read_boxes


def write(
    folder: Path, *objects: tuple[str, float, float, float, float], size: tuple[int, int] | None = None
) -> Path:
    entries = [
        f"<object><name> {name}\n</name><bndbox><xmin>{left}</xmin><ymin>{top}</ymin>"
        f"<xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
        for name, left, top, right, bottom in objects
    ]
    sides = f"<size><width>{size[0]}</width><height>{size[1]}</height></size>" if size else ""
    (folder / "a.xml").write_text(f"<annotation>{sides}{''.join(entries)}</annotation>")
    return folder / "a.xml"


def test_corners_become_boxes(tmp_path: Path) -> None:
    path = write(tmp_path, ("cat", 1, 2, 11, 7), ("dog", 0, 0, 4.5, 4))
    assert read_boxes(path, (20, 10)) == [(1, 2, 10, 5), (0, 0, 4.5, 4)]
    assert read_boxes(path, (20, 10), lambda name: name == "dog") == [(0, 0, 4.5, 4)]
    assert read_boxes(write(tmp_path), (20, 10)) == []


def test_boxes_are_of_the_size_that_the_image_has(tmp_path: Path) -> None:
    box = ("cat", 1, 2, 11, 7)
    assert read_boxes(write(tmp_path, box, size=(20, 10)), (20, 10)) == [(1, 2, 10, 5)]
    assert read_boxes(write(tmp_path, box, size=(20, 10)), (40, 5)) == [(2, 1, 20, 2.5)]
    assert read_boxes(write(tmp_path, box, size=(0, 0)), (40, 5)) == [(1, 2, 10, 5)]


BOMB = (
    '<!DOCTYPE a [<!ENTITY b "bbbbbbbbbb"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;">]><annotation>&c;</annotation>'
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (BOMB.encode(), r"a.xml must be plain XML in UTF-8, got something else: a DOCTYPE"),
        (BOMB.encode("utf-16"), "must be plain XML in UTF-8, got something else"),
        (b"<annotation><object></annotation>", "must be plain XML in UTF-8, got something else: mismatched tag"),
        (b"", "must be plain XML in UTF-8, got something else: no element found"),
        (b"<a><object><bndbox><xmin>1</xmin></bndbox></object></a>", "must have numbers for sizes and boxes"),
        (b"<a><size><width>wide</width></size></a>", "must have numbers for sizes and boxes"),
    ],
)
def test_other_files_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_boxes(tmp_path / "a.xml", (8, 6))
