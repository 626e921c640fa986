from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from PIL import Image

from foveate.data.examples import SPLITS
from foveate.data.labelled import LabelledImages, Sample, class_folders, manifest, unreadable
from foveate.data.splits import Shares
from foveate.sources import TensorImage
from tests.data.pictures import paint


def names(data: LabelledImages) -> list[str]:
    return [sample.path.relative_to(data.root).as_posix() for sample in data.samples]


def labels(data: LabelledImages) -> list[int]:
    return [sample.label for sample in data.samples]


def pixels(data: LabelledImages, index: int) -> torch.Tensor:
    image = data[index].image
    assert isinstance(image, torch.Tensor)
    return image


def touch(root: Path, names: Iterable[str]) -> None:
    """Files that are listed, and never read."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


class TestImages:
    def test_an_example_is_what_the_file_has(self, tmp_path: Path) -> None:
        paint(tmp_path / "cat" / "a.png", (1, 2, 3), size=(5, 4))
        data = LabelledImages([Sample(tmp_path / "cat" / "a.png", 1)], ["dog", "cat"], root=tmp_path)
        example = data[0]
        assert len(data) == 1
        assert (example.label, example.name, data.classes) == (1, "cat/a.png", ("dog", "cat"))
        assert torch.equal(pixels(data, 0), torch.tensor([1, 2, 3], dtype=torch.uint8)[:, None, None].expand(3, 4, 5))
        assert example.boxes.shape == (0, 4)

    def test_channels_are_what_is_asked_for(self, tmp_path: Path) -> None:
        Image.new("L", (3, 2), 7).save(tmp_path / "grey.png")
        sample = Sample(tmp_path / "grey.png", 0)
        shapes = [
            tuple(pixels(LabelledImages([sample], "ab", root=tmp_path, channels=channels), 0).shape)
            for channels in (1, 3, None)
        ]
        assert shapes == [(1, 2, 3), (3, 2, 3), (1, 2, 3)]
        with pytest.raises(ValueError, match="channels must be 1, 3 or None, got 4"):
            LabelledImages([sample], "ab", root=tmp_path, channels=4)

    def test_boxes_are_clipped_to_the_image(self, tmp_path: Path) -> None:
        path = paint(tmp_path / "a.png", size=(8, 6))
        boxes = ((-1.0, 1.0, 3.0, 9.0), (2.5, 2.0, 1.0, 1.0), (8.0, 0.0, 2.0, 2.0))
        data = LabelledImages([Sample(path, 0, boxes)], "ab", root=tmp_path)
        assert data[0].boxes.tolist() == [[0, 1, 2, 5], [2.5, 2, 1, 1]]

    def test_a_crop_is_the_image_alone(self, tmp_path: Path) -> None:
        picture = Image.new("RGB", (8, 6))
        picture.putpixel((3, 2), (9, 8, 7))
        picture.save(tmp_path / "a.png")
        boxes = ((0.0, 0.0, 4.0, 4.0), (7.0, 0.0, 1.0, 1.0))
        data = LabelledImages([Sample(tmp_path / "a.png", 0, boxes, crop=(3, 2, 4, 3))], "ab", root=tmp_path)
        assert pixels(data, 0).shape == (3, 3, 4)
        assert pixels(data, 0)[:, 0, 0].tolist() == [9, 8, 7]
        assert pixels(data, 0).sum() == 24
        assert data[0].boxes.tolist() == [[0, 0, 1, 2]]

    @pytest.mark.parametrize("crop", [(5, 0, 4, 2), (0, 5, 1, 2), (-1, 0, 2, 2), (0, 0, 0, 1)])
    def test_a_crop_must_lie_in_the_image(self, crop: tuple[int, int, int, int], tmp_path: Path) -> None:
        data = LabelledImages([Sample(paint(tmp_path / "a.png"), 0, crop=crop)], "ab", root=tmp_path)
        with pytest.raises(ValueError, match=r"a.png must contain the crop .*, got an image of \(8, 6\) pixels"):
            data[0]

    def test_boxes_can_be_located_when_an_image_is_read(self, tmp_path: Path) -> None:
        samples = [Sample(paint(tmp_path / "a.png", size=(8, 6)), 1, ((0.0, 0.0, 1.0, 1.0),))]
        asked = []

        def locate(sample: Sample, size: tuple[int, int]) -> list[tuple[float, float, float, float]]:
            asked.append((sample, size))
            return [(1.0, 2.0, 3.0, 4.0)]

        data = LabelledImages(samples, "ab", root=tmp_path, locate=locate)
        assert not asked
        assert data[0].boxes.tolist() == [[0, 0, 1, 1], [1, 2, 3, 4]]
        assert asked == [(samples[0], (8, 6))]

    def test_sources_stay_sources(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = TensorImage(torch.arange(48, dtype=torch.float32).reshape(1, 6, 8) / 48)

        class Remote:
            size, read = whole.size, whole.read

        monkeypatch.setattr("foveate.data.labelled.open_image", lambda *_args, **_options: Remote())
        data = LabelledImages(
            [Sample(tmp_path / "a.tif", 0), Sample(tmp_path / "a.tif", 0, crop=(3, 2, 4, 3))], "ab", root=tmp_path
        )
        assert isinstance(data[0].image, Remote)
        torch.testing.assert_close(pixels(data, 1), whole.pixels[:, 2:5, 3:7])


# What is said of each file that ``damage`` makes; "too large" is of an image with more than twice LIMIT's pixels.
LIMIT = 1200
DAMAGED = {
    "cut.jpg": "damaged: image file is truncated",
    "cut.png": "damaged: image file is truncated",
    "empty.png": "an empty file",
    "huge.png": "too large to be decoded whole: Image size (2500 pixels) exceeds limit of 2400 pixels",
    "loop.png": "no such file",
    "lost.png": "no such file",
    "words.png": "not an image that Pillow knows",
}


def damage(folder: Path) -> None:
    for name in ("cut.png", "cut.jpg"):
        Image.effect_noise((32, 32), 50).save(folder / name)
        (folder / name).write_bytes((folder / name).read_bytes()[:-300])
    (folder / "empty.png").touch()
    (folder / "words.png").write_text("words")
    Image.new("L", (50, 50)).save(folder / "huge.png")
    (folder / "lost.png").symlink_to(folder / "nowhere.png")
    (folder / "loop.png").symlink_to(folder / "loop.png")


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Image.MAX_IMAGE_PIXELS == 2**30 // 4 // 3  # Pillow's own guard against bombs is in force
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", LIMIT)


@pytest.mark.usefixtures("limit")
class TestDamage:
    def test_unreadable_files_are_found(self, tmp_path: Path) -> None:
        damage(tmp_path)
        for name in ("whole.png", "whole.jpg", "whole.bmp", "more.jpg"):
            paint(tmp_path / name)
        with (tmp_path / "more.jpg").open("ab") as file:  # as some cameras do
            file.write(b"what follows the image")
        samples = [Sample(path, 0) for path in sorted(tmp_path.iterdir())]
        steps: list[int] = []
        found = unreadable(samples * 2, advance=lambda: steps.append(1))
        assert [path.name for path, _ in found] == sorted(DAMAGED)
        assert len(steps) == len(samples)
        for path, reason in found:
            assert reason.startswith(DAMAGED[path.name]), path.name

    @pytest.mark.parametrize("name", sorted(DAMAGED))
    def test_reading_a_damaged_file_names_it(self, name: str, tmp_path: Path) -> None:
        damage(tmp_path)
        data = LabelledImages([Sample(tmp_path / name, 0)], "ab", root=tmp_path)
        with pytest.raises((ValueError, FileNotFoundError)) as caught:
            data[0]
        assert str(tmp_path / name) in str(caught.value)

    def test_whatever_a_decoder_raises_is_told_with_the_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "odd.png"

        def decode(*_args: object, **_options: object) -> None:
            raise IndexError(f"{path}: a bug of the decoder")

        monkeypatch.setattr("foveate.data.labelled.open_image", decode)
        with pytest.raises(ValueError, match=r"odd.png must be a whole image, got a damaged one: .* a bug"):
            LabelledImages([Sample(path, 0)], "ab", root=tmp_path)[0]


def by_split(root: Path, validation: float = 0.2, test: float = 0.3) -> dict[str, set[str]]:
    return {split: set(names(class_folders(root, split, validation=validation, test=test))) for split in SPLITS}


class TestFolders:
    def test_splits_are_drawn_from_classes(self, tmp_path: Path) -> None:
        all_names = {f"{name}/{i}.png" for name in ("b cat", "a dog") for i in range(40)}
        touch(tmp_path, [*all_names, "a dog/notes.txt"])
        parts = by_split(tmp_path)
        shares = Shares(validation=0.2, test=0.3)
        assert parts == {split: {name for name in all_names if shares.split_of(name) == split} for split in SPLITS}
        assert set.union(*parts.values()) == all_names
        data = class_folders(tmp_path, "train")
        assert data.classes == ("a dog", "b cat")
        assert labels(data) == [int(name.startswith("b")) for name in names(data)]
        assert names(data) == sorted(names(data))

    def test_new_images_move_no_other(self, tmp_path: Path) -> None:
        touch(tmp_path, [f"{name}/{i}.png" for name in "ab" for i in range(30)])
        before = by_split(tmp_path)
        touch(tmp_path, [f"{name}/{i}-new.png" for name in "abc" for i in range(30)])
        after = by_split(tmp_path)
        assert sum(map(len, after.values())) == 150
        assert all(before[split] < after[split] for split in SPLITS)

    def test_folders_of_splits_are_taken_as_they_are(self, tmp_path: Path) -> None:
        touch(
            tmp_path,
            ["Train/a/1.png", "Train/b/x/2.png", "valid/b/3.png", "test/a/4.png", "test/b/5.png", "readme/x"],
        )
        assert by_split(tmp_path) == {
            "train": {"Train/a/1.png", "Train/b/x/2.png"},
            "validation": {"valid/b/3.png"},
            "test": {"test/a/4.png", "test/b/5.png"},
        }
        assert labels(class_folders(tmp_path, "validation")) == [1]

    def test_validation_is_drawn_from_train_where_it_has_no_folder(self, tmp_path: Path) -> None:
        touch(tmp_path, [f"train/{name}/{i}.png" for name in "ab" for i in range(30)] + ["test/a/t.png"])
        parts = by_split(tmp_path)
        shares = Shares(validation=0.2)
        assert parts["test"] == {"test/a/t.png"}
        assert len(parts["train"] | parts["validation"]) == 60
        assert (
            parts["validation"]
            == {name for name in parts["train"] | parts["validation"] if shares.split_of(name[6:]) == "validation"}
            != set()
        )
        with pytest.raises(ValueError, match=r"must have the split 'validation', got train, test; pass"):
            class_folders(tmp_path, "validation", validation=0)

    def test_test_is_not_drawn_where_splits_have_folders(self, tmp_path: Path) -> None:
        touch(tmp_path, ["train/a/1.png", "train/b/1.png"])
        with pytest.raises(ValueError, match=r"must have the split 'test', got train$"):
            class_folders(tmp_path, "test", test=0.5)

    def test_a_class_may_be_called_test(self, tmp_path: Path) -> None:
        touch(tmp_path, ["test/1.png", "quiz/1.png"])
        assert class_folders(tmp_path, "train", validation=0, test=0).classes == ("quiz", "test")

    def test_a_test_set_alone_can_be_read(self, tmp_path: Path) -> None:
        touch(tmp_path, ["test/a/1.png", "test/b/1.png"])
        assert names(class_folders(tmp_path, "test")) == ["test/a/1.png", "test/b/1.png"]
        with pytest.raises(ValueError, match="must have the split 'train', got test"):
            class_folders(tmp_path, "train")

    @pytest.mark.parametrize(
        ("files", "message"),
        [
            ([], "must have a folder for each of at least 2 classes, got an empty folder$"),
            (["1.png", "2.png"], "must have a folder for each of at least 2 classes, got 1.png, 2.png$"),
            (["a/1.png"], "must have a folder for each of at least 2 classes, got only 'a'"),
            (["train/a/1.png", "val/a/1.png"], r"train must have a folder for each of .*, got only 'a'"),
            (["a/1.png", "b/1.txt"], "must have images in each class's folder, got none in 'b'"),
            (["train/a/1.png", "train/b/1.png", "val/c/1.png"], "val must have the classes of train, got also 'c'"),
            (
                ["train/a/1.png", "val/a/1.png", "valid/a/1.png"],
                "must have one folder for each split, got train, val",
            ),
        ],
    )
    def test_wrong_folders_are_refused(self, files: list[str], message: str, tmp_path: Path) -> None:
        touch(tmp_path, files)
        with pytest.raises(ValueError, match=message):
            class_folders(tmp_path, "train")

    def test_wrong_arguments_are_refused(self, tmp_path: Path) -> None:
        touch(tmp_path, ["a/1.png", "b/1.png"])
        with pytest.raises(FileNotFoundError, match="data set must be a folder, got no folder"):
            class_folders(tmp_path / "no", "train")
        with pytest.raises(ValueError, match="split must be one of train, validation, test, got 'valid'"):
            class_folders(tmp_path, "valid")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="images in the split 'test', got none of 2; another share or seed may"):
            class_folders(tmp_path, "test", test=1e-9)


def table(folder: Path, *lines: str) -> Path:
    (folder / "list.csv").write_text("\n".join(lines) + "\n")
    return folder / "list.csv"


class TestManifest:
    def test_a_list_is_read_with_its_splits_and_boxes(self, tmp_path: Path) -> None:
        paint(tmp_path / "a.png", (5, 6, 7))
        touch(tmp_path, ["sub/b.png", "c.png"])
        path = table(
            tmp_path,
            "path,label,split,left,top,width,height",
            "a.png,dog,train,1,1,2,2",
            "sub/b.png,cat,val,,,,",
            "./a.png,dog,train,3,0,1,1",
            "c.png,dog,test,,,,",
        )
        data = manifest(path, "train")
        assert data.samples == (Sample(tmp_path / "a.png", 1, ((1, 1, 2, 2), (3, 0, 1, 1))),)
        assert data.classes == ("cat", "dog")
        assert (data[0].name, pixels(data, 0)[:, 0, 0].tolist()) == ("a.png", [5, 6, 7])
        assert data[0].boxes.tolist() == [[1, 1, 2, 2], [3, 0, 1, 1]]
        assert names(manifest(path, "validation")) == ["sub/b.png"]
        assert names(manifest(path, "test")) == ["c.png"]

    def test_numbers_are_sorted_as_numbers(self, tmp_path: Path) -> None:
        touch(tmp_path, ["a", "b", "c"])
        path = table(tmp_path, "path,label", "a,10", "b,9", "c,-1")
        data = manifest(path, "train", validation=0, test=0)
        assert (data.classes, labels(data)) == (("-1", "9", "10"), [2, 1, 0])
        path = table(tmp_path, "path,label", "a,10", "b,9", "c,x")
        assert manifest(path, "train", validation=0, test=0).classes == ("10", "9", "x")

    def test_splits_are_drawn_where_the_list_has_none(self, tmp_path: Path) -> None:
        files = [f"{i}.png" for i in range(60)]
        path = table(tmp_path, "path,label", *(f"{name},{i % 2}" for i, name in enumerate(files)))
        shares = Shares(validation=0.2, test=0.3, seed=5)
        for split in SPLITS:
            data = manifest(path, split, validation=0.2, test=0.3, seed=5, allow_missing=True)
            assert names(data) == [name for name in files if shares.split_of(name) == split]

    def test_validation_is_drawn_from_train_where_the_list_has_none(self, tmp_path: Path) -> None:
        files = [f"{i}.png" for i in range(60)]
        splits = ["train" if i < 50 else "test" for i in range(60)]
        rows = (f"{name},{i % 2},{split}" for i, (name, split) in enumerate(zip(files, splits, strict=True)))
        path = table(tmp_path, "path,label,split", *rows)
        parts = {split: names(manifest(path, split, validation=0.2, allow_missing=True)) for split in SPLITS}
        assert parts["test"] == files[50:]
        assert parts["validation"]
        assert sorted(parts["train"] + parts["validation"]) == sorted(files[:50])

    def test_files_must_exist_unless_that_is_left_to_reading(self, tmp_path: Path) -> None:
        touch(tmp_path, ["a"])
        path = table(tmp_path, "path,label", "a,x", *(f"{name},y" for name in "bcdef"))
        with pytest.raises(FileNotFoundError) as caught:
            manifest(path, "train", validation=0, test=0)
        assert str(caught.value) == f"{path} must list files that exist, got 5 of 6 that do not: b, c, d and 2 more"
        data = manifest(path, "train", validation=0, test=0, allow_missing=True)
        with pytest.raises(FileNotFoundError, match=r"image must be a file, got no file .*/b"):
            data[1]

    @pytest.mark.parametrize(
        ("lines", "message"),
        [
            (["path,label", "a,x", "b,x"], "must have at least 2 classes, got only 'x'"),
            (["path,label", "a,x", "a,y"], "row 3 must have the label and split of row 2, .* got 'y' and None"),
            (
                ["path,label,split", "a,x,train", "b,y,train", "a,x,val"],
                "row 4 must have the .* got 'x' and 'validation'",
            ),
            (["path,label", "a,x", "b,y", "./a,x"], "must list a file once, or once a box, got ./a in row 4 again"),
            (["path,label,split", "a,x,test", "b,y,test"], "must have the split 'train', got test"),
        ],
    )
    def test_wrong_lists_are_refused(self, lines: list[str], message: str, tmp_path: Path) -> None:
        touch(tmp_path, ["a", "b"])
        with pytest.raises(ValueError, match=message):
            manifest(table(tmp_path, *lines), "train", validation=0, test=0)

    def test_files_elsewhere_keep_their_whole_path_as_a_name(self, tmp_path: Path) -> None:
        (tmp_path / "lists").mkdir()
        file = paint(tmp_path / "images" / "a.png")
        path = table(tmp_path / "lists", "path,label", f"{file},x", f"..{os.sep}images{os.sep}a.png,y")
        data = manifest(path, "train", validation=0, test=0)
        assert [data[0].name, data[1].name] == [file.as_posix(), "../images/a.png"]
