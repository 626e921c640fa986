from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from foveate.class_orders import FMOW
from foveate.data.published import fmow
from foveate.data.splits import Shares
from tests.data.pictures import boxes, labels, paint, write


def note(image: Path, size: tuple[int, int], *entries: tuple[str, int, list[float]], single: bool = False) -> None:
    listed: list[dict[str, Any]] = [{"category": name, "ID": number, "box": box} for name, number, box in entries]
    content = {"img_width": size[0], "img_height": size[1], "bounding_boxes": listed[0] if single else listed}
    write(image.with_suffix(".json"), json.dumps(content))


PLACES = {"airport": 0, "impoverished_settlement": 42, "zoo": 61}


def paint_place(folder: Path, count: int = 1) -> None:
    for number in range(count):
        paint(folder / f"{folder.name}_{number}_rgb.jpg", size=(100, 80))
        paint(folder / f"{folder.name}_{number}_msrgb.jpg", size=(100, 80))
        note(folder / f"{folder.name}_{number}_rgb.jpg", (100, 80), (folder.parent.name, 0, [10, 10, 50, 40]))


@pytest.fixture
def satellite(tmp_path: Path) -> Path:
    """Each category has twenty places with two images in train, one place in val and none in test."""
    for category in PLACES:
        for number in range(20):
            paint_place(tmp_path / "train" / category / f"{category}_{number}", 2)
        paint_place(tmp_path / "val" / category / f"{category}_0")
    (tmp_path / "train" / "false_detection" / "false_detection_0").mkdir(parents=True)
    return tmp_path


class TestFmow:
    def test_labels_are_in_the_authors_order(self, satellite: Path) -> None:
        train = fmow(satellite, "train")
        assert labels(train) == {
            f"{name}_{place}_{i}_rgb.jpg": label
            for name, label in PLACES.items()
            for place in range(20)
            for i in (0, 1)
        }
        assert train.classes == FMOW
        assert labels(fmow(satellite, "train", validation=0.5)) == labels(train)  # it has a folder of its own
        assert labels(fmow(satellite, "validation", validation=0.5)) == {
            f"{name}_0_0_rgb.jpg": label for name, label in PLACES.items()
        }
        shutil.move(satellite / "val", satellite / "test")
        assert labels(fmow(satellite, "test")) == {f"{name}_0_0_rgb.jpg": label for name, label in PLACES.items()}

    def test_places_are_not_torn_apart_where_validation_is_a_share(self, satellite: Path) -> None:
        shutil.rmtree(satellite / "val")
        parts = {split: labels(fmow(satellite, split, validation=0.3)) for split in ("train", "validation")}
        places = {split: {name.rsplit("_", 2)[0] for name in found} for split, found in parts.items()}
        assert not places["train"] & places["validation"]
        assert len(places["train"] | places["validation"]) == 60
        shares = Shares(validation=0.3)
        assert {shares.split_of(f"train/{name.rsplit('_', 1)[0]}/{name}") for name in places["train"]} == {"train"}
        assert len(parts["validation"]) == 2 * len(places["validation"]) > 0
        with pytest.raises(ValueError, match="must have the split 'validation', got train; pass"):
            fmow(satellite, "validation")

    def test_the_test_part_is_read_as_it_is_distributed(self, satellite: Path) -> None:
        truth = satellite / "groundtruth"
        for number, category in ((7, "zoo"), (8, "airport"), (9, "false_detection")):
            for i in (0, 1):
                image = paint(satellite / "test" / f"{number:07d}" / f"{number:07d}_{i}_rgb.jpg", size=(100, 80))
                note(image, (100, 80), ("", 5, [1, 1, 5, 5]))
                entries = (("false_detection", -1, [0.0] * 4), (category, 5, [i, 2, 30, 40]))
                note(
                    truth / "test_gt" / category / f"{category}_3" / f"{category}_3_{i}_rgb.jpg", (100, 80), *entries
                )
        pairs = [
            {"input": f"test_gt/{category}/{category}_3", "output": f"test/{number:07d}"}
            for number, category in ((9, "false_detection"), (7, "zoo"), (8, "airport"))
        ]
        write(truth / "test_gt_mapping.json", json.dumps(pairs))
        data = fmow(satellite, "test")
        wanted = {f"{number:07d}_{i}_rgb.jpg": label for number, label in ((8, 0), (7, 61)) for i in (0, 1)}
        assert labels(data) == wanted
        assert list(boxes(data).values()) == [[[0, 2, 30, 40]], [[1, 2, 30, 40]]] * 2
        assert fmow(satellite, "test", crops=True).samples[0].crop == (0, 0, 34, 45)
        shutil.rmtree(satellite / "test" / "0000007")
        with pytest.raises(FileNotFoundError, match=r"mapping.json must list folders that exist, got no .*0000007"):
            fmow(satellite, "test")
        write(truth / "test_gt_mapping.json", '{"input": "output"}')
        with pytest.raises(
            ValueError, match=r"mapping.json must be a list of inputs and outputs, got something else"
        ):
            fmow(satellite, "test")
        shutil.rmtree(truth)
        with pytest.raises(FileNotFoundError, match="test must have a folder for each category, or have test_gt_map"):
            fmow(satellite, "test")

    @pytest.mark.parametrize("name", ["test_matched_with_gt", "test_gt"])
    def test_the_test_part_may_be_sorted_into_categories(self, name: str, satellite: Path) -> None:
        shutil.move(satellite / "val", satellite / name)
        assert len(fmow(satellite, "test")) == 3

    def test_boxes_are_those_of_the_own_category(self, satellite: Path) -> None:
        image = satellite / "val" / "zoo" / "zoo_0" / "zoo_0_0_rgb.jpg"
        entries = (("zoo", 1, [90, 70, 20, 20]), ("airport", 2, [1, 2, 3, 4]), ("zoo", -1, [5, 6, 7, 8]))
        note(image, (100, 80), *entries, ("zoo", 3, [0.5, 1, 2, 3]))
        assert boxes(fmow(satellite, "validation"))["zoo_0_0_rgb.jpg"] == [[90, 70, 10, 10], [0.5, 1, 2, 3]]
        note(image, (200, 40), ("zoo", 1, [20, 10, 30, 20]), single=True)  # the image was made smaller
        assert boxes(fmow(satellite, "validation"))["zoo_0_0_rgb.jpg"] == [[10, 20, 15, 40]]
        image.with_suffix(".json").unlink()
        assert boxes(fmow(satellite, "validation"))["zoo_0_0_rgb.jpg"] == []
        with pytest.raises(
            FileNotFoundError, match=r"zoo_0_0_rgb.jpg must have its boxes in a JSON file, got no file"
        ):
            fmow(satellite, "validation", crops=True)

    def test_crops_are_the_authors(self, satellite: Path) -> None:
        """By hand: margins of int(side * multiplier / 2) each end, by the side's share of the image's."""
        crops: Mapping[tuple[int, int, int, int], tuple[int, int, int, int] | None] = {
            (10, 10, 50, 40): (7, 7, 56, 46),
            (40, 30, 40, 32): (36, 27, 48, 38),
            (0, 0, 30, 24): (0, 0, 34, 27),
            (80, 60, 20, 16): (75, 56, 25, 24),
            (50, 40, 10, 8): (45, 36, 20, 16),
            (50, 40, 4, 6): (46, 34, 12, 18),
            (10, 10, 50, 8): (7, 6, 56, 16),
            (0, 0, 100, 80): (0, 0, 100, 80),
            (5, 5, 2, 30): None,
            (5, 5, 30, 2): None,
            (110, 5, 30, 20): None,
        }
        image = satellite / "val" / "zoo" / "zoo_0" / "zoo_0_0_rgb.jpg"
        note(image, (100, 80), *(("zoo", i, [*box]) for i, box in enumerate(crops)), ("airport", 0, [0, 0, 9, 9]))
        data = fmow(satellite, "validation", crops=True)
        found = [sample for sample in data.samples if sample.label == 61]
        assert [sample.crop for sample in found] == [crop for crop in crops.values() if crop]
        assert len(data) == len(found) + 2
        read = data[data.samples.index(found[4])]
        assert tuple(read.image.shape) == (3, 16, 20)  # type: ignore[union-attr]
        assert read.boxes.shape == (0, 4)

    @pytest.mark.parametrize(
        "content",
        [
            "words",
            "[]",
            "[" * 100_000,
            '{"bounding_boxes": []}',
            '{"img_width": 0, "img_height": 9, "bounding_boxes": []}',
            '{"img_width": 9, "img_height": 9, "bounding_boxes": [{"category": "zoo", "ID": 0, "box": [1, 2, 3]}]}',
            '{"img_width": 9, "img_height": 9,"bounding_boxes": [{"category": "zoo","ID": 0,"box": [1, 2, 3, NaN]}]}',
        ],
    )
    def test_damaged_notes_are_told(self, content: str, satellite: Path) -> None:
        write(satellite / "val" / "zoo" / "zoo_0" / "zoo_0_0_rgb.json", content)
        wrong = r"zoo_0_0_rgb.json must have img_width, img_height and bounding_boxes, got something else"
        with pytest.raises(ValueError, match=wrong):
            fmow(satellite, "validation")[2]
        with pytest.raises(ValueError, match=wrong):
            fmow(satellite, "validation", crops=True)

    def test_wrong_folders_are_refused(self, satellite: Path) -> None:
        write(satellite / "other" / "readme.txt")
        with pytest.raises(FileNotFoundError, match=r"other must have train, got readme.txt"):
            fmow(satellite / "other", "train")
        shutil.move(satellite / "train", satellite / "other" / "fMoW-rgb" / "train")
        assert len(fmow(satellite / "other", "train")) == 120
        (satellite / "train" / "cats").mkdir(parents=True)
        with pytest.raises(FileNotFoundError, match="train must have a folder for each category, got cats"):
            fmow(satellite, "train")
        (satellite / "train" / "zoo").mkdir()
        with pytest.raises(ValueError, match=r"must have images in the split 'train', got none$"):
            fmow(satellite, "train")
