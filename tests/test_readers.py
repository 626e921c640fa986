from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from foveate import ImageSource, open_image
from foveate.geometry import Region


def pixels(source: ImageSource) -> torch.Tensor:
    return source.read(Region.whole(source.size), source.size)


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1), ("RGBA", 3), ("P", 3), ("CMYK", 3), ("LA", 1)])
def test_pictures_are_opened_whatever_their_mode(mode: str, channels: int, tmp_path: Path) -> None:
    grey = np.random.default_rng(0).integers(0, 256, (6, 9), dtype=np.uint8)
    Image.fromarray(grey).convert(mode).save(tmp_path / "image.tif")
    source = open_image(tmp_path / "image.tif")
    assert isinstance(source, ImageSource)
    assert source.size == (9, 6)
    read = pixels(source)
    assert read.shape == (channels, 6, 9)
    if mode != "CMYK":
        wanted = torch.from_numpy(grey.astype(np.float32)) / 255 * 2 - 1
        torch.testing.assert_close(read[0], wanted)


def test_sixteen_bits_keep_their_depth(tmp_path: Path) -> None:
    values = np.array([[0, 1, 32768, 65535]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    torch.testing.assert_close(
        pixels(open_image(tmp_path / "deep.png"))[0, 0], torch.tensor([0, 1, 32768, 65535]) / 65535 * 2 - 1
    )


def test_channels_can_be_asked_for(tmp_path: Path) -> None:
    grey = np.random.default_rng(0).integers(0, 256, (6, 9), dtype=np.uint8)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    for name in ("grey.png", "deep.png"):
        colour = pixels(open_image(tmp_path / name, channels=3))
        assert colour.shape == (3, 6, 9)
        torch.testing.assert_close(colour[2], torch.from_numpy(grey.astype(np.float32)) / 255 * 2 - 1)
    Image.fromarray(np.stack([grey] * 3, -1)).save(tmp_path / "colour.png")
    assert pixels(open_image(tmp_path / "colour.png", channels=1)).shape == (1, 6, 9)
    with pytest.raises(ValueError, match="channels must be 1 or 3"):
        open_image(tmp_path / "grey.png", channels=4)


def test_what_would_be_destroyed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big_endian = np.array([[1000, 40000, 65535]], dtype=">u2")
    Image.frombytes("I;16B", (3, 1), big_endian.tobytes()).save(tmp_path / "motorola.tif")
    wanted = torch.tensor([1000, 40000, 65535]) / 65535 * 2 - 1
    torch.testing.assert_close(pixels(open_image(tmp_path / "motorola.tif"))[0, 0], wanted)
    for mode, dtype in (("I", np.int32), ("F", np.float32)):
        Image.fromarray(np.array([[1000, 70000]], dtype=dtype)).save(tmp_path / "wide.tif")
        with pytest.raises(ValueError, match=f"must have 8 or 16 bits a channel, got Pillow's mode {mode}"):
            open_image(tmp_path / "wide.tif")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    Image.new("L", (9, 9)).save(tmp_path / "bomb.png")
    with pytest.raises(ValueError, match="must be small enough to be decoded whole"):
        open_image(tmp_path / "bomb.png")


def test_orientation_is_respected(tmp_path: Path) -> None:
    picture = Image.new("RGB", (9, 6))
    exif = picture.getexif()
    exif[0x0112] = 6  # to be turned by a quarter
    picture.save(tmp_path / "turned.jpg", exif=exif)
    assert open_image(tmp_path / "turned.jpg").size == (6, 9)


def test_what_is_no_image_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="image must be a file, got no file"):
        open_image(tmp_path / "nowhere.png")
    (tmp_path / "text.png").write_text("words")
    with pytest.raises(ValueError, match="must be an image that Pillow knows"):
        open_image(tmp_path / "text.png")
    Image.effect_noise((64, 64), 50).save(tmp_path / "cut.png")
    whole = (tmp_path / "cut.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="must be a whole image"):
        open_image(tmp_path / "cut.png")
