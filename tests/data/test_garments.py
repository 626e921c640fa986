from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from foveate.data.garments import CLASSES, GarmentScenes, SceneOptions, embedded, read_idx


def test_the_package_brings_equally_many_garments_of_each_class() -> None:
    for split, each in (("train", 400), ("test", 100)):
        garments, labels = embedded(split)
        assert garments.shape == (each * 10, 28, 28)
        assert np.bincount(labels).tolist() == [each] * 10
    # Classes differ as they do in the original: shoes are empty at the top, trousers are not.
    train, labels = embedded("train")
    top = [train[labels == CLASSES.index(name)][:, :6].mean() for name in ("sneaker", "trousers")]
    assert top[0] < 5 < top[1]


def test_a_scene_is_the_same_whenever_it_is_drawn() -> None:
    scenes, again = GarmentScenes("train", 50, seed=3), GarmentScenes("train", 80, seed=3)
    last = scenes[49]
    for index in (0, 17, 49):
        assert torch.equal(scenes[index].image, again[index].image)
    assert torch.equal(scenes[49].image, last.image)
    assert not torch.equal(scenes[0].image, GarmentScenes("train", 50, seed=4)[0].image)
    assert not torch.equal(scenes[0].image, GarmentScenes("test", 50, seed=3)[0].image)


def test_the_object_is_where_its_box_says() -> None:
    """Without fragments and noise, nothing else is bright, and what is in the box is a garment of the class."""
    scenes = GarmentScenes("test", 20, options=SceneOptions(side=200, fragments=0, noise=0, scale=(1.0, 1.0)))
    garments, labels = embedded("test")
    for index in range(20):
        scene = scenes[index]
        (left, top, width, height), pixels = scene.boxes[0].tolist(), scene.image[0].numpy()
        assert (width, height) == (28, 28)
        inside = pixels[top : top + 28, left : left + 28]
        same = np.maximum(garments[labels == scene.label], 24) == inside
        assert same.all((1, 2)).any()
        rest = pixels.copy()
        rest[top : top + 28, left : left + 28] = 24
        assert (rest == 24).all()


def test_fragments_leave_the_object_whole() -> None:
    options = SceneOptions(side=200, noise=0, fragments=200)
    alone = GarmentScenes("test", 5, options=SceneOptions(side=200, noise=0, fragments=0))
    assert options.fragments == 200
    scene = GarmentScenes("test", 5, options=options)[0]
    left, top, size, _ = scene.boxes[0].tolist()
    inside = scene.image[0, top : top + size, left : left + size]
    garments, labels = embedded("test")
    candidates = [
        Image.fromarray(g).resize((size, size), Image.Resampling.BILINEAR) for g in garments[labels == scene.label]
    ]
    assert any((np.maximum(np.asarray(c), 24) == inside.numpy()).all() for c in candidates)
    assert (scene.image != 24).float().mean() > 2 * (alone[0].image != 24).float().mean()


def test_several_objects_lie_apart() -> None:
    scene = GarmentScenes("train", 5, options=SceneOptions(objects=4))[2]
    assert scene.boxes.shape == (4, 4)
    covered = torch.zeros(512, 512)
    for left, top, width, height in scene.boxes.tolist():
        covered[top : top + height, left : left + width] += 1
    assert covered.max() == 1


def test_sizes_and_classes_vary() -> None:
    scenes = GarmentScenes("train", 60, options=SceneOptions(side=256))
    drawn = [scenes[index] for index in range(60)]
    assert {scene.label for scene in drawn} == set(range(10))
    sizes = {int(scene.boxes[0, 2]) for scene in drawn}
    assert 56 <= min(sizes) < max(sizes) <= 84


@pytest.fixture
def idx(tmp_path: Path) -> Path:
    """Three garments in the format of the original files."""
    for name in ("train", "t10k"):
        images = np.arange(3 * 28 * 28, dtype=np.uint32).astype(np.uint8)
        header = b"\0\0\x08\x03" + np.array([3, 28, 28], ">i4").tobytes()
        (tmp_path / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + images.tobytes()))
        (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(
            b"\0\0\x08\x01" + np.array([3], ">i4").tobytes() + b"\1\2\3"
        )
    return tmp_path


def test_the_whole_set_is_read_from_its_own_files(idx: Path) -> None:
    images, labels = read_idx(idx, "train")
    assert images.shape == (3, 28, 28)
    assert images[0, 0, :3].tolist() == [0, 1, 2]
    assert labels.tolist() == [1, 2, 3]


def test_wrong_files_are_refused(idx: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(FileNotFoundError, match="Fashion-MNIST must be in"):
        read_idx(tmp_path_factory.mktemp("empty"), "train")
    (idx / "t10k-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + np.array([2], ">i4").tobytes() + b"\1\2")
    with pytest.raises(ValueError, match="as many labels as images, got 2 and 3"):
        read_idx(idx, "test")
    (idx / "train-labels-idx1-ubyte").write_bytes(b"words")
    with pytest.raises(ValueError, match="whole file of bytes in IDX format"):
        read_idx(idx, "train")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"side": 100}, "at least twice the largest garment, 168 px, got 100"),
        ({"objects": 0}, "must have an object"),
        ({"scale": (3, 2)}, "range of positive"),
    ],
)
def test_impossible_scenes_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SceneOptions(**wrong)
    with pytest.raises(IndexError, match="one of 5, got 5"):
        GarmentScenes("train", 5)[5]
