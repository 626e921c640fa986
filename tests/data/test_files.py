from __future__ import annotations

from pathlib import Path

import pytest

from foveate.data.files import (
    check_folder,
    contents,
    find_in,
    first_in,
    folders_in,
    images_in,
    in_threads,
    relative_name,
)


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def names_in(folder: Path) -> list[str]:
    return [relative_name(path, folder) for path in images_in(folder)]


def test_images_are_found_in_order_and_nothing_else_is(tmp_path: Path) -> None:
    touch(tmp_path, "b.JPEG", "a.png", "c/z.tiff", "c/a.JPG", "notes.txt", "film.mpg", ".hidden.png", ".cache/d.png")
    touch(tmp_path, "jpg")
    assert names_in(tmp_path) == ["a.png", "b.JPEG", "c/a.JPG", "c/z.tiff"]


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    touch(tmp_path, "elsewhere/a.png", "set/b.png", "set/inner/c.png")
    (tmp_path / "set" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set" / "inner" / "up").symlink_to(tmp_path / "set")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "set" / "inner")
    assert names_in(tmp_path / "set") == ["b.png", "inner/c.png", "linked/a.png", "linked/back/c.png"]


def test_links_to_nothing_are_reported_and_not_lost(tmp_path: Path) -> None:
    (tmp_path / "lost.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "self.png").symlink_to(tmp_path / "self.png")
    (tmp_path / "self").symlink_to(tmp_path / "self")
    assert names_in(tmp_path) == ["lost.png", "self.png"]
    assert folders_in(tmp_path) == []


def test_folders_are_sorted_and_hidden_ones_left_out(tmp_path: Path) -> None:
    touch(tmp_path, "b/x", "a/x", ".git/x", "file")
    assert folders_in(tmp_path) == [tmp_path / "a", tmp_path / "b"]


def test_contents_tell_what_is_there(tmp_path: Path) -> None:
    assert contents(tmp_path) == "an empty folder"
    assert contents(tmp_path / "no") == f"no folder {tmp_path / 'no'}"
    touch(tmp_path, "c", "b", ".hidden", "a/x")
    assert contents(tmp_path) == "a, b, c"
    assert contents(tmp_path, most=1) == "a and 2 more"


def test_the_first_that_is_there_is_found(tmp_path: Path) -> None:
    touch(tmp_path, "inner/list.txt", "other.txt")
    assert find_in(tmp_path, "list.txt", "inner/list.txt", "other.txt") == tmp_path / "inner" / "list.txt"
    assert first_in(tmp_path, ["list.txt"]) is None
    with pytest.raises(FileNotFoundError) as caught:
        find_in(tmp_path, "list.txt", "deep/list.txt")
    assert str(caught.value) == f"{tmp_path} must have list.txt, got inner, other.txt"
    with pytest.raises(FileNotFoundError, match=r"data set must be a folder, got no folder .*other.txt"):
        find_in(tmp_path / "other.txt", "list.txt")
    check_folder(tmp_path)


def test_names_are_relative_where_they_can_be(tmp_path: Path) -> None:
    assert relative_name(tmp_path / "a" / "b.png", tmp_path) == "a/b.png"
    assert relative_name(Path("/elsewhere/b.png"), tmp_path) == "/elsewhere/b.png"


def test_threads_keep_the_order() -> None:
    assert list(in_threads(lambda number: number * number, range(3000))) == [n * n for n in range(3000)]
