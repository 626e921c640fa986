from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from foveate import demonstration
from foveate.checkpoints import load
from foveate.demonstration import demonstrate
from foveate.models import TNet


@pytest.mark.gradients
def test_the_demo_trains_compares_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of training instead of minutes: what is learned is for the benchmark to tell."""
    monkeypatch.setattr(demonstration, "TEST_SCENES", 20)
    looked: list[tuple[int, int]] = []
    told: set[str] = set()

    def watching(name: str):  # type: ignore[no-untyped-def]
        return lambda _learner, _doing: told.add(name)

    shown = demonstrate(tmp_path, minutes=0.02, watching=watching, advance=lambda *c: looked.append(c))
    assert told == set(demonstration.RECIPES)
    assert shown.minutes == 0.02
    assert looked[-1] == (20, 20)
    assert [(score.name, score.locations) for score in shown.scores] == [
        ("TNet", ()),
        *(("TNet", (count,)) for count in range(1, 6)),
        ("whole scene, 64 px", ()),
        ("whole scene, 512 px", ()),
    ]
    assert [score.glimpses for score in shown.scores] == [1, 2, 3, 4, 5, 6, 1, 1]
    tnet, low, full = shown.scores[5], shown.scores[6], shown.scores[7]
    assert tnet.flops == pytest.approx(6 * low.flops, rel=0.1)
    assert full.flops == pytest.approx(64 * low.flops, rel=0.05)
    assert len(shown.pictures) == demonstration.SHOWN
    for picture in shown.pictures:
        with Image.open(picture) as image:
            assert image.size == (512, 512)
    assert isinstance(load(shown.models[0]), TNet)
    # Again into the same folder: an earlier demo is replaced, nothing else is.
    (tmp_path / "notes.txt").write_text("mine")
    demonstrate(tmp_path, minutes=0.01)
    assert (tmp_path / "notes.txt").read_text() == "mine"
