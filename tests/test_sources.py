from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from foveate.geometry import Region
from foveate.sources import ImageSource, TensorImage, as_sources, resample
from tests.official import golden


def official_crop(image: Tensor, left: int, top: int, width: int, height: int, size: tuple[int, int]) -> Tensor:
    """As the official code does it: pad the whole image with zeros, slice, resize."""
    margin = max(width, height) + abs(left) + abs(top) + 1
    padded = F.pad(image, (margin,) * 4)
    crop = padded[:, top + margin : top + margin + height, left + margin : left + margin + width]
    return F.interpolate(crop[None], size[::-1], mode="bilinear", align_corners=False)[0]


@settings(max_examples=60)
@given(st.integers(-20, 40), st.integers(-20, 40), st.integers(1, 60), st.integers(1, 60), st.integers(1, 50))
def test_a_region_reads_as_in_the_official_code(left: int, top: int, width: int, height: int, side: int) -> None:
    image = torch.randn(3, 31, 43)
    got = TensorImage(image).read(Region(left, top, width, height), (side, side + 3))
    torch.testing.assert_close(got, official_crop(image, left, top, width, height, (side, side + 3)))


@pytest.mark.parametrize(
    ("before", "after", "side", "step"),
    [("crop157_i8_div8", "crop157_to_224", 224, 3), ("img224_i8_div8", "img224_to_77", 77, 1)],
)
def test_resizing_equals_tensorflow(before: str, after: str, side: int, step: int) -> None:
    data = golden("preproc")
    length = data[before].shape[-2]
    image = (data[before].float() / 8).reshape(length, length, 3).permute(2, 0, 1)
    got = TensorImage(image).read(Region.whole((length, length)), (side, side))[:, ::step, ::step]
    wanted = data[after].reshape(*got.shape[1:], 3).permute(2, 0, 1)
    torch.testing.assert_close(got, wanted, atol=2e-6, rtol=0)


def test_what_lies_outside_of_the_limits_is_blank() -> None:
    image = torch.ones(1, 10, 10)
    read = TensorImage(image).read(Region(2, 2, 6, 6, within=(4, 0, 7, 10)), (6, 6))
    assert read[0, 0].tolist() == [0, 0, 1, 1, 1, 0]
    assert TensorImage(image).read(Region(20, 20, 4, 4), (2, 2)).abs().sum() == 0


def test_regions_between_pixels_reproduce_a_ramp() -> None:
    """Bilinear samples of a linear image are linear: the closed form is the sample's own coordinate."""
    y, x = torch.meshgrid(torch.arange(40) + 0.5, torch.arange(50) + 0.5, indexing="ij")
    region = Region(7.3, 4.6, 20.25, 18.5)
    read = TensorImage(torch.stack((x, y))).read(region, (9, 7))
    wanted_x = 7.3 + (torch.arange(9) + 0.5) * 20.25 / 9
    wanted_y = 4.6 + (torch.arange(7) + 0.5) * 18.5 / 7
    torch.testing.assert_close(read[0], wanted_x.expand(7, -1))
    torch.testing.assert_close(read[1], wanted_y[:, None].expand(-1, 9))


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("size", [(7, 5), (20, 33), (24, 30)])
def test_sampling_between_pixels_agrees_with_torch_on_whole_ones(antialias: bool, size: tuple[int, int]) -> None:
    image = torch.randn(2, 30, 24)
    wanted = F.interpolate(image[None], size[::-1], mode="bilinear", align_corners=False, antialias=antialias)[0]
    # An offset of a billionth of a pixel takes the general path.
    got = resample(image, Region(1e-9, 1e-9, 24, 30), size, antialias=antialias)
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


def test_antialiasing_matters_when_shrinking() -> None:
    stripes = torch.tensor([1.0, -1.0] * 32).expand(1, 64, 64)
    image, region = TensorImage(stripes), Region(0, 0, 64, 64)
    assert image.read(region, (9, 9)).abs().max() > 0.3
    assert image.read(region, (9, 9), antialias=True).abs().max() < 0.05


def test_integers_are_scaled_to_the_unit_range() -> None:
    for dtype, top in ((torch.uint8, 255), (torch.uint16, 65535)):
        pixels = torch.tensor([[[0, top]]], dtype=torch.int64).to(dtype)
        read = TensorImage(pixels).read(Region.whole((2, 1)), (2, 1))
        assert read.tolist() == [[[-1.0, 1.0]]]
        assert read.dtype == torch.float32


def test_outside_of_an_integer_image_is_mid_grey() -> None:
    read = TensorImage(torch.full((1, 2, 2), 255, dtype=torch.uint8)).read(Region(1, 0, 2, 2), (2, 2))
    assert read.tolist() == [[[1.0, 0.0], [1.0, 0.0]]]


def test_a_region_may_be_a_plain_tuple() -> None:
    image = torch.randn(1, 8, 8)
    assert torch.equal(TensorImage(image).read((2, 3, 4, 5), (4, 5)), image[:, 3:8, 2:6])


def test_batches_become_sources() -> None:
    batch = torch.randn(2, 3, 4, 6)
    sources = as_sources(batch)
    assert [source.size for source in sources] == [(6, 4), (6, 4)]
    assert all(isinstance(source, ImageSource) for source in sources)
    assert as_sources(sources) is sources


@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        (torch.zeros(3, 8, 8), ValueError, r"images must be \(batch, channels, height, width\), got \(3, 8, 8\)"),
        (torch.zeros(0, 3, 8, 8), ValueError, "at least one image"),
        (torch.zeros(1, 3, 0, 8), ValueError, "at least one pixel"),
        ([], ValueError, "at least one image"),
        (["a.tif"], TypeError, "a list of ImageSource, got str"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.int64), ValueError, "uint8 or uint16, got torch.int64"),
    ],
)
def test_what_is_not_an_image_is_refused(images: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        as_sources(images)
