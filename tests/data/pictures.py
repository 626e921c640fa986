"""What tests build data sets of, and what they ask of them."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from foveate.data.labelled import LabelledImages

MATLAB = Path(__file__).parent / "matlab"


def paint(path: Path, colour: tuple[int, int, int] = (10, 20, 30), size: tuple[int, int] = (8, 6)) -> Path:
    """Writes an image and the folders that it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def labels(data: LabelledImages) -> dict[str, int]:
    """The labels by the files' names, which are all different."""
    found = {sample.path.name: sample.label for sample in data.samples}
    assert len(found) == len(data)
    return found


def boxes(data: LabelledImages) -> dict[str, list[list[float]]]:
    """The boxes of each image by its file's name."""
    return {sample.path.name: data[index].boxes.tolist() for index, sample in enumerate(data.samples)}


def write(path: Path, *lines: str) -> None:
    """Writes a text and the folders that it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def voc(path: Path, size: tuple[int, int], *objects: tuple[str, int, int, int, int]) -> None:
    """Writes what an annotator said of an image: names, and left, top, right, bottom."""
    write(
        path,
        f"<annotation><size><width>{size[0]}</width><height>{size[1]}</height></size>",
        *(
            f"<object><name>{name}</name><bndbox><xmin>{left}</xmin><ymin>{top}</ymin>"
            f"<xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
            for name, left, top, right, bottom in objects
        ),
        "</annotation>",
    )
