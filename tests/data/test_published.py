"""What the published data sets have in common; each has its own tests."""

from __future__ import annotations

import inspect
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest

from foveate.data import published
from tests.data.test_fmow import paint_place
from tests.data.test_imagenet import imagenet_of_kaggle


@pytest.mark.parametrize("name", published.__all__)
def test_all_are_called_alike(name: str) -> None:
    """The catalogue calls them with these, whichever it is."""
    parameters = inspect.signature(getattr(published, name)).parameters
    defaults = {key: parameter.default for key, parameter in parameters.items() if parameter.name != "crops"}
    wanted = {"root": inspect.Parameter.empty, "split": inspect.Parameter.empty}
    assert defaults == wanted | {"validation": 0.0, "seed": 0, "channels": 3}


@pytest.mark.parametrize("name", published.__all__)
def test_what_is_no_folder_is_told(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="data set must be a folder, got no folder"):
        getattr(published, name)(tmp_path / "nowhere", "train")
    with pytest.raises(FileNotFoundError, match=r"must have [A-Za-z.]+, got an empty folder$"):
        getattr(published, name)(tmp_path, "train")


def test_data_sets_can_be_sent_to_the_processes_that_read_them(tmp_path: Path) -> None:
    paint_place(tmp_path / "fmow" / "train" / "zoo" / "zoo_3", 2)
    imagenet_of_kaggle(tmp_path / "imagenet")
    (tmp_path / "imagenet" / "ILSVRC" / "Annotations" / "CLS-LOC").mkdir(parents=True)
    for data in (published.fmow(tmp_path / "fmow", "train"), published.imagenet(tmp_path / "imagenet", "train")):
        assert data.locate is not None
        copied = ForkingPickler.loads(ForkingPickler.dumps(data))
        assert copied.samples == data.samples
        assert copied[0].boxes.tolist() == data[0].boxes.tolist()
