from __future__ import annotations

import csv
from collections import defaultdict

import pytest
import torch
from torch import nn

from foveate import create_model
from foveate.complexity import count_flops, count_parameters, describe, dial
from tests.official import GOLDEN

CLASSES = {"ImageNet": 1000, "fMoW": 62, "CUB": 200, "NABirds": 555}
MIXED = {"4 (2+2x1)": (2, 1), "6 (3+3x1)": (3, 1), "6 (2+2x2)": (2, 2)}


def model_and_side(model: str, dataset: str) -> tuple[str, int]:
    if model == "BagNet-77":
        return "bagnet77", 224
    if model == "TNet":
        return f"tnet_{dataset.lower()}", 224 if dataset == "ImageNet" else 448
    if model.startswith("TNet-"):
        return f"tnet_{model[-2:].lower()}", 448
    name, _, side = model.partition("@")
    return f"efficientnet_{name[-2:].lower()}", int(side or 448)


def published() -> dict[tuple[str, str], list[dict[str, str]]]:
    """The rows of the reference, by model and data set."""
    with (GOLDEN / "tnet_counts.csv").open() as file:
        pairs = defaultdict(list)
        for row in csv.DictReader(file):
            pairs[row["model"].partition("@")[0], row["dataset"]].append(row)
    return pairs


PUBLISHED = published()


def test_all_pairs_and_rows_are_there() -> None:
    assert len(PUBLISHED) == 24
    assert sum(map(len, PUBLISHED.values())) == 86


@pytest.mark.parametrize("pair", PUBLISHED)
def test_counts_equal_the_official_ones(pair: tuple[str, str]) -> None:
    for row in PUBLISHED[pair]:
        name, side = model_and_side(row["model"], row["dataset"])
        model = create_model(name, num_classes=CLASSES[row["dataset"]])
        parameters = count_parameters(model)
        assert parameters.trainable == int(row["official_params_trainable"])
        assert parameters.total == int(row["official_params_total"])
        count = row["locations"]
        locations = MIXED.get(count) or (() if count in ("-", "0") else (int(count),))
        flops = count_flops(model, (side, side), locations)
        assert flops.flops / 1e9 == pytest.approx(float(row["official_flops_B"]), rel=1e-4)
        with_gates = float(row["official_flops_plus_se_multiply_B"])
        assert flops.with_gates / 1e9 == pytest.approx(with_gates, rel=1e-4)


def test_flops_are_eq_10() -> None:
    model = create_model("whole_image", backbone="bagnet77", num_classes=10)
    model.network = nn.Sequential(
        nn.Conv2d(3, 8, (3, 5), stride=2, padding=1),
        nn.Conv2d(8, 8, 3, groups=4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    model.classifier = nn.Sequential(nn.Linear(8, 10))
    # 40 x 30 (width x height) -> 19 x 15 -> 17 x 13
    wanted = 3 * 15 * (19 * 15 * 8) + 2 * 9 * (17 * 13 * 8) + 8 * 10
    assert count_flops(model, (40, 30)).flops == wanted


def test_counting_leaves_the_model_as_it_was() -> None:
    model = create_model("tnet", backbone="test_resnet.r160_in1k", base=64, num_classes=3).eval()
    x = torch.randn(1, 3, 64, 64)
    before = model(x).logits
    count_flops(model, (100, 100), (2,))
    assert torch.equal(model(x).logits, before)


def test_the_dial_lists_settings_as_the_paper_does() -> None:
    assert dial(()) == [()]
    assert dial((3,)) == [(), (1,), (2,), (3,)]
    assert dial((2, 2)) == [(), (1,), (2,), (2, 1), (2, 2)]


def test_descriptions_tell_what_each_level_sees() -> None:
    told = describe(create_model("tnet_fmow", num_classes=62), (896, 896), (2, 1))
    assert [(level.candidates, level.width, level.shrink[0]) for level in told.levels] == [
        (1, 896, 4),
        (9, 448, 2),
        (81, 224, 1),
    ]
    assert [row.glimpses for row in told.dial] == [1, 2, 3, 5]
    assert told.automatic is not None
    assert told.automatic.map.layer == told.location_map.layer == "blocks.3"
    whole = describe(create_model("efficientnet_b0", num_classes=62), (896, 448))
    assert whole.dial[0].flops == pytest.approx(1.5363e9 * 2, rel=1e-3)
    with pytest.raises(ValueError, match="grid's 9 cells, got"):
        describe(create_model("tnet_fmow", num_classes=62), (896, 896), (10,))
