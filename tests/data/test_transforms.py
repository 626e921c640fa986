"""What training and evaluation make of an example; all that is random comes from the generator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from foveate.data import transforms
from foveate.data.augmentation import augment
from foveate.data.examples import Example
from foveate.data.transforms import AUGMENTATIONS, Authors, Flipped, Plain, Resized, training_transform
from foveate.geometry import Region
from foveate.sources import TensorImage, to_unit_range

SIZE = (24, 32)


def example(channels: int = 3, dtype: torch.dtype = torch.uint8, shape: tuple[int, int] = (40, 60)) -> Example:
    # Smooth, so that no way of resizing can invent much.
    rows, columns = torch.linspace(0, 1, shape[0]), torch.linspace(0, 1, shape[1])
    unit = torch.stack([(rows[:, None] * (c + 1) + columns) % 1 * 0.6 + 0.2 for c in range(channels)])
    images = {torch.uint8: unit * 255, torch.uint16: unit * 65535, torch.float32: unit * 2 - 1}
    return Example(images[dtype].to(dtype), 1, torch.tensor([[5.0, 6.0, 20.0, 30.0]]))


def at(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("kind", AUGMENTATIONS)
def test_all_that_is_random_comes_from_the_generator(kind: Any) -> None:
    prepare = training_transform(kind, SIZE, antialias=False)
    state = torch.get_rng_state()
    images = [prepare(example(), at(seed)) for seed in (1, 1, 2, 3, 4, 5)]
    assert torch.equal(torch.get_rng_state(), state)  # nobody else's numbers are drawn
    assert torch.equal(images[0], images[1])
    different = sum(not torch.equal(images[0], image) for image in images[2:])
    assert different == 0 if kind == "none" else different >= 2


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.float32])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", AUGMENTATIONS)
def test_all_give_pixels_between_minus_one_and_one(kind: Any, channels: int, dtype: torch.dtype) -> None:
    prepare = training_transform(kind, SIZE, antialias=False)
    for seed in range(4):
        image = prepare(example(channels, dtype), at(seed))
        assert image.shape == (channels, *SIZE)
        assert image.dtype == torch.float32
        assert -1.2 <= image.min() < -0.1  # the authors' kernels overshoot
        assert 0.1 < image.max() <= 1.2


@pytest.mark.parametrize("kind", AUGMENTATIONS)
def test_how_pixels_are_stored_does_not_matter(kind: Any) -> None:
    prepare = training_transform(kind, SIZE, antialias=False)
    stored = [prepare(example(3, dtype), at(5)) for dtype in (torch.uint8, torch.uint16, torch.float32)]
    # Eight bits are rounded once more where torchvision computes in them.
    torch.testing.assert_close(stored[0], stored[2], atol=0.05, rtol=0)
    torch.testing.assert_close(stored[1], stored[2], atol=1e-3, rtol=0)


def test_none_is_what_evaluation_sees() -> None:
    prepare = training_transform("none", SIZE, antialias=True)
    assert prepare == Resized(SIZE, antialias=True)
    expected = TensorImage(example().image).read(Region(0, 0, 60, 40), (32, 24), antialias=True)
    assert torch.equal(prepare(example(), at(0)), expected)
    plain = training_transform("none", SIZE, antialias=False)(example(), at(0))
    assert not torch.equal(plain, expected)


def test_without_a_size_images_stay_as_they_are() -> None:
    given = example()
    assert Resized(None)(given, at(0)) is given.image
    source = TensorImage(given.image)
    assert Resized(None)(Example(source, 0, given.boxes), at(0)) is source
    assert Flipped(None)(given, at(0)).shape == given.image.shape


def test_flips_are_of_both_axes_in_half_of_the_cases_each() -> None:
    whole = Resized(SIZE)(example(), at(0))
    ways = [whole, whole.flip(1), whole.flip(2), whole.flip(1, 2)]
    counts = [0] * 4
    for seed in range(200):
        image = Flipped(SIZE)(example(), at(seed))
        (way,) = [number for number, other in enumerate(ways) if torch.equal(image, other)]
        counts[way] += 1
    assert min(counts) > 30


def test_plain_crops_at_least_half_flips_and_colours_mildly() -> None:
    flat = Example(torch.full((3, 40, 60), 128, dtype=torch.uint8), 0, torch.zeros(0, 4))
    values = {round(float(Plain(SIZE)(flat, at(seed)).mean()), 3) for seed in range(40)}
    assert len(values) > 10
    assert -0.25 < min(values) < -0.1 < 0.1 < max(values) < 0.25  # brightness by a fifth
    # A ramp from left to right shows where it was cut and whether it was turned.
    ramp = torch.linspace(0, 255, 60).expand(4, 40, 60).to(torch.uint8)  # four channels are not coloured
    spans = []
    for seed in range(40):
        row = Plain(SIZE)(Example(ramp, 0, torch.zeros(0, 4)), at(seed))[0, 0]
        spans.append(float(row[-1] - row[0]) / 2)
    assert min(map(abs, spans)) > 0.5 * 0.75**0.5 - 0.1
    assert 8 < sum(span < 0 for span in spans) < 32


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The objects that the authors' crops were to keep."""
    seen: list[Any] = []

    def spy(image: Tensor, *args: Any, objects: Any = (), **options: Any) -> Tensor:
        seen.append(list(objects))
        return augment(image, *args, objects=objects, **options)

    monkeypatch.setattr(transforms, "augment", spy)
    return seen


def test_crops_for_scenes_keep_objects_and_those_for_birds_do_not_know_of_them(asked: list[Any]) -> None:
    Authors(SIZE, "photometric")(example(), at(0))
    Authors(SIZE, "geometric")(example(), at(0))
    assert asked == [[(5, 6, 25, 36)], []]


@pytest.mark.parametrize("kind", ["photometric", "geometric"])
def test_the_authors_chain_is_that_of_the_augmentation_module(kind: Any) -> None:
    unit = example().image / 255
    objects = [(5, 6, 25, 36)] if kind == "photometric" else []
    expected = augment(unit, SIZE, at(3), kind=kind, objects=objects)
    torch.testing.assert_close(Authors(SIZE, kind)(example(), at(3)), expected)


def test_a_grey_image_has_no_colours_to_change() -> None:
    """One channel goes through what three equal ones go through."""
    grey = example(1)
    coloured = Example(grey.image.expand(3, -1, -1), 0, grey.boxes)
    for seed in range(8):
        three = Authors(SIZE, "photometric")(coloured, at(seed))
        torch.testing.assert_close(three[0], three[2])
        torch.testing.assert_close(Authors(SIZE, "photometric")(grey, at(seed)), three[:1])


def test_colours_must_be_colours() -> None:
    with pytest.raises(ValueError, match="augmentation 'photometric' must be of 1 or 3 channels, got 4"):
        Authors(SIZE, "photometric")(example(4), at(0))
    assert Authors(SIZE, "geometric")(example(4), at(0)).shape == (4, *SIZE)


@pytest.mark.parametrize("kind", ["plain", "photometric", "geometric"])
def test_crops_need_pixels_and_a_size(kind: Any) -> None:
    with pytest.raises(ValueError, match=f"augmentation '{kind}' must have a size to resize to, got none"):
        training_transform(kind, None, antialias=False)
    source = Example(TensorImage(example().image), 0, torch.zeros(0, 4))
    with pytest.raises(ValueError, match="augmentation must be of pixels in memory, got TensorImage"):
        training_transform(kind, SIZE, antialias=False)(source, at(0))


def test_unknown_augmentations_are_refused() -> None:
    kind: Any = "wild"
    with pytest.raises(ValueError, match=r"augmentation must be one of none, flips, plain, .*, got 'wild'"):
        training_transform(kind, SIZE, antialias=False)


def test_pixels_are_those_of_the_unit_range() -> None:
    assert torch.equal(Resized((40, 60))(example(), at(0)), to_unit_range(example().image))
