from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from foveate.class_orders import names_by_first_image
from foveate.data.examples import SPLITS
from foveate.data.published import cub, nabirds
from foveate.data.splits import Shares
from tests.data.pictures import boxes, labels, paint, write

CUB_NAMES = ("001.Albatross", "002.Auk", "003.Bunting")


def paint_birds(home: Path, classes: Mapping[str, str], images: Mapping[str, tuple[str, str, str]]) -> None:
    """Lists in the birds' form: image number -> (its file, its class's number, whether it is for training)."""
    write(home / "classes.txt", *(f"{number} {name}" for number, name in classes.items()))
    write(home / "images.txt", *(f"{image} {name}" for image, (name, _, _) in images.items()))
    write(home / "image_class_labels.txt", *(f"{image} {number}" for image, (_, number, _) in images.items()))
    write(home / "train_test_split.txt", *(f"{image} {training}" for image, (_, _, training) in images.items()))
    write(home / "bounding_boxes.txt", *(f"{image} 1.0 2.0 {3 + i % 4}.5 9" for i, image in enumerate(images)))
    for name, _, _ in images.values():
        paint(home / "images" / name)


@pytest.fixture
def cub_home(tmp_path: Path) -> Path:
    numbers = {str(i + 1): name for i, name in enumerate(CUB_NAMES)}
    images = {
        str(10 * int(number) + i): (f"{name}/{name[4:]}_{i}.jpg", number, str(int(i < 6)))
        for number, name in numbers.items()
        for i in range(8)
    }
    paint_birds(tmp_path / "CUB_200_2011", numbers, images)
    return tmp_path / "CUB_200_2011"


class TestCub:
    def test_labels_are_class_numbers_minus_one(self, cub_home: Path) -> None:
        train, test = cub(cub_home, "train"), cub(cub_home.parent, "test")
        assert labels(train) == {
            f"{name[4:]}_{i}.jpg": label for label, name in enumerate(CUB_NAMES) for i in range(6)
        }
        assert labels(test) == {f"{name[4:]}_{i}.jpg": label for label, name in enumerate(CUB_NAMES) for i in (6, 7)}
        assert train.classes == test.classes == CUB_NAMES == names_by_first_image(cub_home)
        assert (train[6].name, train[6].label) == ("002.Auk/Auk_0.jpg", 1)
        assert boxes(train)["Albatross_1.jpg"] == [[1, 2, 4.5, 4]]

    def test_validation_is_a_share_of_train(self, cub_home: Path) -> None:
        parts = {split: labels(cub(cub_home, split, validation=0.3)) for split in SPLITS}
        shares = Shares(validation=0.3)
        assert set(parts["validation"]) == {
            f"{name[4:]}_{i}.jpg"
            for name in CUB_NAMES
            for i in range(6)
            if shares.split_of(f"{name}/{name[4:]}_{i}.jpg") == "validation"
        }
        assert len(parts["train"] | parts["validation"]) == len(parts["train"]) + len(parts["validation"]) == 18
        assert len(parts["test"]) == 6
        with pytest.raises(ValueError, match="must have the split 'validation', got train, test; pass"):
            cub(cub_home, "validation")
        with pytest.raises(ValueError, match="split must be one of train, validation, test, got 'val'"):
            cub(cub_home, "val")  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("name", "before", "after", "message"),
        [
            ("images.txt", "11 001", "10 001", r"images.txt must list each image once, got 10 again"),
            ("bounding_boxes.txt", "10 1.0", "99 1.0", r"bounding_boxes.txt must list every image .*, got no 10$"),
            (
                "bounding_boxes.txt",
                "10 1.0",
                "10 x",
                "must have four numbers for each image, got 'x 2.0 3.5 9' for 10",
            ),
            ("bounding_boxes.txt", "10 1.0", "10", "must have four numbers for each image, got '2.0 3.5 9' for 10"),
            ("train_test_split.txt", "10 1", "10 2", "must have 0 or 1 for each image, got '2' for 001.Albatross/"),
            (
                "image_class_labels.txt",
                "10 1",
                "99 1",
                r"image_class_labels.txt must list every image .*, got no 10$",
            ),
            ("image_class_labels.txt", "10 1", "10 4", r"classes.txt must name every class, got none for 4$"),
            (
                "classes.txt",
                "2 002",
                "4 002",
                r"classes.txt must number its classes 1, 2, 3 etc., got \['1', '4', '3'\]",
            ),
        ],
    )
    def test_wrong_lists_are_refused(self, name: str, before: str, after: str, message: str, cub_home: Path) -> None:
        text = (cub_home / name).read_text()
        assert before in text
        (cub_home / name).write_text(text.replace(before, after, 1))
        with pytest.raises(ValueError, match=message):
            cub(cub_home, "train")

    def test_missing_files_are_told(self, cub_home: Path) -> None:
        (cub_home / "images" / "001.Albatross" / "Albatross_2.jpg").unlink()
        with pytest.raises(FileNotFoundError, match=r"must list files that exist, got 1 of 18 that do not: .*_2.jpg"):
            cub(cub_home, "train")
        (cub_home / "train_test_split.txt").unlink()
        with pytest.raises(FileNotFoundError, match=r"data set must have train_test_split.txt, got no file"):
            cub(cub_home, "test")
        with pytest.raises(FileNotFoundError, match=r"001.Albatross must have images.txt, got Albatross_0.jpg"):
            cub(cub_home / "images" / "001.Albatross", "test")


class TestNabirds:
    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        """Class 817 comes first, and class 3 has no image, as the groups of birds have none."""
        classes = {"3": "Ducks", "7": "Black Duck", "295": "Barn Owl (light)", "817": "Goldfinch"}
        images = {
            f"{i:04x}-{i}": (f"{c}/{i}.jpg", c, str(i % 2)) for i, c in enumerate(["817", "295", "817", "7"] * 3)
        }
        paint_birds(tmp_path / "nabirds", classes, images)
        return tmp_path / "nabirds"

    def test_labels_are_in_the_order_of_first_images(self, home: Path) -> None:
        train, test = nabirds(home.parent, "train"), nabirds(home, "test")
        assert train.classes == test.classes == names_by_first_image(home)
        assert train.classes == ("Goldfinch", "Barn Owl (light)", "Black Duck")
        assert labels(train) == {f"{i}.jpg": {1: 1, 3: 2}[i % 4] for i in range(1, 12, 2)}
        assert labels(test) == {f"{i}.jpg": 0 for i in range(0, 12, 2)}
        assert boxes(test)["0.jpg"] == [[1, 2, 3.5, 4]]

    def test_every_class_must_have_a_name(self, home: Path) -> None:
        write(home / "classes.txt", "7 Black Duck", "817 Goldfinch")
        with pytest.raises(ValueError, match=r"classes.txt must name every class, got none for 295"):
            nabirds(home, "train")
