from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from foveate.data.published import dogs
from foveate.data.splits import Shares
from tests.data.pictures import MATLAB, boxes, labels, paint, voc

BREEDS = ("n02085620-Chihuahua", "n02085782-Japanese_spaniel")


def paint_dogs(images: Path) -> None:
    """The files in the lists that scipy wrote, and one that is in no list."""
    for breed, numbers in zip(BREEDS, ((5927, 3441, 1152, 2650, 1), (1, 9, 7)), strict=True):
        for number in numbers:
            paint(images / breed / f"{breed[:9]}_{number}.jpg")


class TestDogs:
    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        paint_dogs(tmp_path / "Images")
        for name in ("train_list.mat", "test_list.mat"):
            shutil.copy(MATLAB / name, tmp_path)
        return tmp_path

    def test_labels_are_in_the_order_of_the_breeds(self, home: Path) -> None:
        train, test = dogs(home, "train"), dogs(home, "test")
        assert train.classes == test.classes == BREEDS
        assert labels(train) == {
            "n02085620_5927.jpg": 0,
            "n02085620_3441.jpg": 0,
            "n02085620_1152.jpg": 0,
            "n02085782_1.jpg": 1,
            "n02085782_9.jpg": 1,
        }
        assert labels(test) == {"n02085620_2650.jpg": 0, "n02085782_7.jpg": 1}
        assert boxes(test) == {"n02085620_2650.jpg": [], "n02085782_7.jpg": []}

    def test_validation_is_a_share_of_train(self, home: Path) -> None:
        parts = [set(labels(dogs(home, split, validation=0.5, seed=3))) for split in ("train", "validation")]
        assert parts[0] | parts[1] == set(labels(dogs(home, "train")))
        assert not parts[0] & parts[1]
        shares = Shares(validation=0.5, seed=3)
        assert {shares.split_of(f"{BREEDS[name > 'n02085700']}/{name}") for name in parts[1]} == {"validation"}
        with pytest.raises(ValueError, match="must have the split 'validation', got train, test; pass"):
            dogs(home, "validation")

    def test_boxes_are_in_files_without_an_ending(self, home: Path) -> None:
        voc(home / "Annotation" / BREEDS[0] / "n02085620_2650", (8, 6), ("Chihuahua", 1, 2, 4, 4))
        voc(home / "Annotation" / BREEDS[1] / "n02085782_7", (8, 6), ("spaniel", 0, 0, 8, 6), ("spaniel", 1, 1, 2, 2))
        assert list(boxes(dogs(home, "test")).values()) == [[[1, 2, 3, 2]], [[0, 0, 8, 6], [1, 1, 1, 1]]]
        with pytest.raises(FileNotFoundError, match=r"annotation must be an XML file, got no file .*n02085620_5927"):
            dogs(home, "train")[0]

    def test_other_layouts_are_known(self, tmp_path: Path) -> None:
        paint_dogs(tmp_path / "images" / "Images")
        (tmp_path / "lists").mkdir()
        shutil.copy(MATLAB / "test_list.mat", tmp_path / "lists")
        voc(tmp_path / "annotations" / "Annotation" / BREEDS[0] / "n02085620_2650", (8, 6), ("Chihuahua", 1, 2, 4, 4))
        assert dogs(tmp_path, "test")[0].boxes.tolist() == [[1, 2, 3, 2]]

    def test_what_does_not_fit_is_refused(self, home: Path) -> None:
        (home / "Images" / "n02000000-Aardvark").mkdir()
        with pytest.raises(
            ValueError, match=r"must number breeds in the order of the folders .* got 1.0 for n02085620"
        ):
            dogs(home, "train")
        (home / "Images" / "n02000000-Aardvark").rmdir()
        (home / "Images" / BREEDS[0] / "n02085620_5927.jpg").unlink()
        with pytest.raises(
            FileNotFoundError, match=r"must list files that exist, got 1 of 5 that do not: .*_5927.jpg"
        ):
            dogs(home, "train")
        shutil.copy(MATLAB / "meta.mat", home / "train_list.mat")
        with pytest.raises(ValueError, match=r"train_list.mat must have file_list and labels, got synsets"):
            dogs(home, "train")
        (home / "train_list.mat").unlink()
        with pytest.raises(FileNotFoundError, match=r"must have train_list.mat, got Images, test_list.mat"):
            dogs(home, "train")
        with pytest.raises(FileNotFoundError, match=r"must have Images, got n02085620_1.jpg"):
            dogs(home / "Images" / BREEDS[0], "test")
