from __future__ import annotations

from pathlib import Path

import pytest
from timm.data.imagenet_info import ImageNetInfo

from foveate.class_orders import FMOW, imagenet_names, names_by_first_image, published_order, read_class_names


def test_fmow_has_one_name_out_of_place() -> None:
    assert len(FMOW) == len(set(FMOW)) == 62
    assert FMOW[41:44] == ("recreational_facility", "impoverished_settlement", "road_bridge")
    others = [name for name in FMOW if name != "impoverished_settlement"]
    assert others == sorted(others)


def test_orders_belong_to_published_models() -> None:
    names, order = published_order("tnet_imagenet", 1000)
    assert names is not None
    assert names[0].startswith("tench")
    assert len(names) == len(set(names)) == 1000
    assert (names[134], names[517]) == ("crane (n02012849)", "crane (n03126707)")
    assert "sorted" in order
    assert published_order("tnet_fmow", 62)[0] == FMOW
    assert "minus 1" in published_order("tnet_b3", 200)[1]
    assert "first image" in published_order("tnet_b3", 555)[1]
    assert published_order("tnet_b3", 17) == (None, "")
    assert published_order("bagnet77", 200) == published_order("tnet_fmow", 555) == (None, "")


def test_synsets_are_described_where_they_are_all_of_imagenets() -> None:
    synsets = ImageNetInfo().label_names()
    assert imagenet_names(synsets) == published_order("bagnet77", 1000)[0]
    assert imagenet_names(synsets[:100]) == tuple(synsets[:100])
    assert imagenet_names(synsets[::-1]) == tuple(synsets[::-1])


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    """A data set in NABirds' own format; class 295 comes before class 7."""
    (tmp_path / "images.txt").write_text("id-a 0817/a.jpg\nid-b 0295/b.jpg\nid-c 0817/c.jpg\nid-d 0007/d.jpg\n")
    (tmp_path / "image_class_labels.txt").write_text("id-d 7\nid-c 817\nid-b 295\nid-a 817\n")
    (tmp_path / "classes.txt").write_text("0 Birds\n7 Black Duck\n295 Barn Owl\n817 Goldfinch (Female/Eclipse)\n")
    return tmp_path


def test_nabirds_classes_are_ordered_by_their_first_image(birds: Path) -> None:
    assert names_by_first_image(birds) == ("Goldfinch (Female/Eclipse)", "Barn Owl", "Black Duck")
    assert read_class_names(birds) == names_by_first_image(birds)


def test_names_from_a_text_file(tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_text("one\n\n two words \n")
    assert read_class_names(path) == ("one", "two words")


def test_what_is_missing_is_named(birds: Path) -> None:
    (birds / "image_class_labels.txt").write_text("id-a 817\n")
    with pytest.raises(ValueError, match="must label every image, got none for id-b"):
        names_by_first_image(birds)
    (birds / "image_class_labels.txt").write_text("id-d 7\nid-c 817\nid-b 296\nid-a 817\n")
    with pytest.raises(ValueError, match=r"classes.txt must name every class, got none for 296"):
        names_by_first_image(birds)
    (birds / "classes.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"data set must have classes.txt"):
        names_by_first_image(birds)
    with pytest.raises(FileNotFoundError, match="text file or a data set's folder"):
        read_class_names(birds / "nowhere.txt")
