from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from foveate.data.examples import SPLITS
from foveate.data.published import imagenet
from foveate.data.splits import Shares
from tests.data.pictures import MATLAB, boxes, labels, paint, voc, write

# Sorted as ImageNet's labels are; in meta.mat they have the numbers 2, 1 and 3.
SYNSETS = ("n01000001", "n02000002", "n03000003")
JUDGED = {f"ILSVRC2012_val_{i:08d}": label for i, label in ((1, 2), (2, 1), (3, 0), (4, 1))}


def paint_imagenet(home: Path, *, in_folders: bool) -> None:
    for synset in SYNSETS:
        for number in range(20):
            paint(home / "train" / synset / f"{synset}_{number}.JPEG")
    for name, label in JUDGED.items():
        paint(home / "val" / (SYNSETS[label] if in_folders else "") / f"{name}.JPEG")


def imagenet_in_folders(root: Path) -> None:
    paint_imagenet(root, in_folders=True)


def imagenet_with_kit(root: Path) -> None:
    paint_imagenet(root, in_folders=False)
    kit = root / "ILSVRC2012_devkit_t12" / "data"
    write(kit / "ILSVRC2012_validation_ground_truth.txt", "3", "1", "2", "1", "3")
    shutil.copy(MATLAB / "meta.mat", kit)


def imagenet_of_kaggle(root: Path) -> None:
    paint_imagenet(root / "ILSVRC" / "Data" / "CLS-LOC", in_folders=False)
    rows = (f"{name},{SYNSETS[label]} 1 1 2 2 {SYNSETS[label]} 3 3 4 4 " for name, label in reversed(JUDGED.items()))
    write(root / "LOC_val_solution.csv", "ImageId,PredictionString", *rows)
    write(root / "LOC_synset_mapping.txt", *(f"{synset} a name, another" for synset in reversed(SYNSETS)))


class TestImageNet:
    @pytest.mark.parametrize("build", [imagenet_in_folders, imagenet_with_kit, imagenet_of_kaggle])
    def test_labels_are_those_of_sorted_synsets(self, build: Callable[[Path], None], tmp_path: Path) -> None:
        build(tmp_path)
        test = imagenet(tmp_path, "test")
        assert labels(test) == {f"{name}.JPEG": label for name, label in JUDGED.items()}
        train = imagenet(tmp_path, "train")
        assert train.classes == test.classes == SYNSETS
        assert labels(train) == {f"{s}_{i}.JPEG": label for label, s in enumerate(SYNSETS) for i in range(20)}
        assert train[59].label == 2

    def test_validation_is_a_share_of_train(self, tmp_path: Path) -> None:
        imagenet_in_folders(tmp_path)
        parts = {split: labels(imagenet(tmp_path, split, validation=0.3, seed=1)) for split in SPLITS}
        shares = Shares(validation=0.3, seed=1)
        assert set(parts["validation"]) == {
            f"{s}_{i}.JPEG"
            for s in SYNSETS
            for i in range(20)
            if shares.split_of(f"{s}/{s}_{i}.JPEG") == "validation"
        }
        assert len(parts["train"] | parts["validation"]) == len(parts["train"]) + len(parts["validation"]) == 60
        assert len(parts["test"]) == 4
        with pytest.raises(
            ValueError, match=r"must have the split 'validation', got train, test; pass validation=0.1"
        ):
            imagenet(tmp_path, "validation")

    def test_any_of_kaggles_folders_will_do(self, tmp_path: Path) -> None:
        imagenet_of_kaggle(tmp_path)
        for inner in ("ILSVRC", "ILSVRC/Data", "ILSVRC/Data/CLS-LOC"):
            assert len(imagenet(tmp_path / inner, "test")) == 4

    def test_val_alone_can_be_read(self, tmp_path: Path) -> None:
        imagenet_of_kaggle(tmp_path)
        home = tmp_path / "ILSVRC" / "Data" / "CLS-LOC"
        shutil.rmtree(home / "train")
        (home / "val" / "ILSVRC2012_val_00000003.JPEG").unlink()  # the only one of the first synset
        assert imagenet(tmp_path, "test").classes == SYNSETS
        (tmp_path / "LOC_synset_mapping.txt").unlink()
        assert imagenet(tmp_path, "test").classes == SYNSETS[1:]
        with pytest.raises(ValueError, match="must have the split 'train', got test"):
            imagenet(tmp_path, "train")

    def test_boxes_are_those_of_the_own_synset(self, tmp_path: Path) -> None:
        imagenet_of_kaggle(tmp_path)
        assert boxes(imagenet(tmp_path, "train"))["n01000001_0.JPEG"] == []
        folder = tmp_path / "ILSVRC" / "Annotations" / "CLS-LOC"
        voc(folder / "train" / "n01000001" / "n01000001_0.xml", (16, 6), ("n01000001", 2, 1, 6, 3))
        voc(
            folder / "train" / "n02000002" / "n02000002_3.xml",
            (8, 6),
            ("Scottish_deerhound", 0, 0, 1, 1),
            ("n01000001", 1, 1, 2, 2),
            ("n02000002", 7, 5, 9, 9),
        )
        voc(folder / "val" / "ILSVRC2012_val_00000002.xml", (8, 6), ("n02000002", 3, 2, 5, 5))
        found = boxes(imagenet(tmp_path, "train")) | boxes(imagenet(tmp_path, "test"))
        assert {name: each for name, each in found.items() if each} == {
            "n01000001_0.JPEG": [[1, 1, 2, 2]],
            "n02000002_3.JPEG": [[0, 0, 1, 1], [7, 5, 1, 1]],
            "ILSVRC2012_val_00000002.JPEG": [[3, 2, 2, 3]],
        }

    def test_wrong_folders_are_refused(self, tmp_path: Path) -> None:
        write(tmp_path / "readme.txt")
        with pytest.raises(FileNotFoundError, match=r"must have train, got readme.txt$"):
            imagenet(tmp_path, "train")
        paint(tmp_path / "train" / "cats" / "1.JPEG")
        with pytest.raises(FileNotFoundError, match=r"train must have folders of synsets, n01440764 etc., got cats"):
            imagenet(tmp_path, "train")
        with pytest.raises(ValueError, match="must have the split 'test', got train"):
            imagenet(tmp_path, "test")

    def test_labels_that_do_not_fit_are_refused(self, tmp_path: Path) -> None:
        imagenet_with_kit(tmp_path)
        kit = tmp_path / "ILSVRC2012_devkit_t12" / "data"
        write(kit / "ILSVRC2012_validation_ground_truth.txt", "3", "1", "2")
        with pytest.raises(
            ValueError, match=r"must have a label for each image .* got none for ILSVRC2012_val_00000004"
        ):
            imagenet(tmp_path, "test")
        write(kit / "ILSVRC2012_validation_ground_truth.txt", "3", "1", "2", "4")
        with pytest.raises(ValueError, match=r"must have the numbers of synsets in meta.mat, got '4'"):
            imagenet(tmp_path, "test")
        shutil.copy(MATLAB / "test_list.mat", kit / "meta.mat")
        with pytest.raises(ValueError, match=r"meta.mat must have synsets with ILSVRC2012_ID and WNID, got none"):
            imagenet(tmp_path, "test")
        (kit / "meta.mat").unlink()
        with pytest.raises(
            FileNotFoundError, match=r"data must have meta.mat, got ILSVRC2012_validation_ground_truth"
        ):
            imagenet(tmp_path, "test")
        shutil.rmtree(kit)
        with pytest.raises(FileNotFoundError, match=r"val must have folders of synsets, or LOC_val_solution.csv or"):
            imagenet(tmp_path, "test")
        write(tmp_path / "LOC_val_solution.csv", "ImageId,PredictionString", "ILSVRC2012_val_00000001,cat")
        with pytest.raises(ValueError, match=r"must have an image and its synset in each row, got .*'cat'"):
            imagenet(tmp_path, "test")
        paint(tmp_path / "val" / "n09999999" / "ILSVRC2012_val_00000001.JPEG")
        with pytest.raises(ValueError, match="val must have the synsets of train, got also n09999999"):
            imagenet(tmp_path, "test")
