from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from foveate.backbones import (
    CPU_PASS_PIXELS,
    Backbone,
    LocationMap,
    best_candidate,
    build_network,
    candidates,
    choose_location_map,
    feature_size,
    pass_size,
)
from foveate.geometry import Grid

SMALL = LocationMap(layer="layer2", channels=32, rows=(0, 3), columns=(1, 2, 5))


def square(n: int, cell: float) -> Grid:
    return Grid(rows=n, columns=n, cell=(cell, cell), convention="exact")


@pytest.mark.parametrize(
    ("name", "grid", "layer"),
    [
        ("tf_efficientnet_b0", square(3, 0.5), "blocks.3"),
        ("tf_efficientnet_b0", square(5, 0.35), "blocks.3.0"),
        ("tf_efficientnet_b1", square(5, 0.35), "blocks.2.1"),
        ("tf_efficientnet_b2", square(5, 0.35), "blocks.2.1"),
        ("tf_efficientnet_b3", square(5, 0.35), "blocks.2.1"),
        ("tf_efficientnet_b4", square(5, 0.35), "blocks.2.1"),
    ],
)
def test_the_rule_chooses_the_layer_that_the_authors_chose(name: str, grid: Grid, layer: str) -> None:
    assert choose_location_map(build_network(name, in_chans=3), in_chans=3, base=224, grid=grid).layer == layer


def test_pixels_are_those_whose_centres_are_nearest() -> None:
    network = build_network("resnet18", in_chans=3)
    grid = Grid(rows=3, columns=4, cell=(0.4, 0.3), convention="exact")
    found = candidates(network, in_chans=3, base=128, grid=grid)
    layer = next(c for c in found if c.map.layer == "layer2")
    # Stride 8; the centre of pixel 0 is at half a pixel (all padding is symmetric).
    wanted_x = [19.2, 49.0666, 78.9333, 108.8]
    assert layer.map.columns == tuple(round((x - 0.5) / 8) for x in wanted_x)
    assert best_candidate(found).overlap == max(c.overlap for c in found)
    assert all(0 <= c.overlap <= 1 for c in found)


@pytest.mark.parametrize(
    "name", ["resnet18", "convnext_atto", "regnety_002", "mobilenetv3_small_050", "densenet121", "vgg11"]
)
def test_any_cnn_has_a_location_map(name: str) -> None:
    network = build_network(name, in_chans=3)
    chosen = choose_location_map(network, in_chans=3, base=160, grid=square(4, 0.35))
    features, maps = Backbone(network.eval(), chosen)(torch.randn(2, 3, 160, 160))
    assert features.shape == (2, feature_size(network))
    assert maps.shape == (2, chosen.channels, 4, 4)


def test_a_network_that_sees_no_cell_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sees about a cell of 78 x 78 px.*patch_embed.proj at best, which sees 16"):
        choose_location_map(
            build_network("vit_tiny_patch16_224", in_chans=3), in_chans=3, base=224, grid=square(5, 0.35)
        )


def test_a_grid_finer_than_every_map_is_refused() -> None:
    with pytest.raises(ValueError, match="one pixel for each cell of the 40 x 40 grid at 32 x 32 px"):
        choose_location_map(build_network("resnet18", in_chans=3), in_chans=3, base=32, grid=square(40, 0.1))


def test_unknown_names_are_refused_with_those_that_are_close() -> None:
    with pytest.raises(ValueError, match=r"name of a timm model, got 'resnet19'"):
        build_network("resnet19", in_chans=3)


class Plain(nn.Module):
    """Its map can be worked out by hand."""

    num_features = 2

    def __init__(self) -> None:
        super().__init__()
        self.layer2 = nn.Conv2d(1, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = self.layer2(x)
        maps += 100  # what comes later must not change the map
        return maps.mean((2, 3))


def test_the_map_is_the_layers_output_at_its_rows_and_columns() -> None:
    network = Plain()
    x = torch.randn(3, 1, 8, 8)
    features, maps = Backbone(network, LocationMap(layer="layer2", channels=2, rows=(0, 3), columns=(1, 2, 5)))(x)
    wanted = network.layer2(x)[:, :, [0, 3]][..., [1, 2, 5]]
    torch.testing.assert_close(maps, wanted)
    torch.testing.assert_close(features, network.layer2(x).mean((2, 3)) + 100)


def test_small_passes_give_the_same() -> None:
    chosen = LocationMap(layer="layer2", channels=128, rows=(0, 3), columns=(1, 2))
    backbone = Backbone(build_network("resnet18", in_chans=3), chosen).eval()
    glimpses = torch.randn(11, 3, 224, 224)
    assert pass_size(glimpses) == CPU_PASS_PIXELS // 224**2 == 4
    calls = []
    backbone.network.register_forward_hook(lambda _m, args, _o: calls.append(len(args[0])))
    features, maps = backbone(glimpses)
    assert calls == [4, 4, 3]
    whole = backbone.network(glimpses)
    torch.testing.assert_close(features, whole, rtol=1e-4, atol=1e-4)
    assert maps.shape == (11, 128, 2, 2)


@pytest.mark.gradients
def test_with_gradients_all_glimpses_go_in_one_pass() -> None:
    assert pass_size(torch.empty(64, 3, 224, 224)) == 64


def test_in_training_a_level_is_one_pass_even_without_gradients() -> None:
    backbone = Backbone(Plain(), LocationMap(layer="layer2", channels=2, rows=(0,), columns=(0,))).train()
    calls = []
    backbone.network.register_forward_hook(lambda _m, args, _o: calls.append(len(args[0])))
    backbone(torch.randn(9, 1, 300, 300))
    backbone.eval()(torch.randn(9, 1, 300, 300))
    assert calls == [9, 2, 2, 2, 2, 1]


def test_pixels_are_normalised_as_the_network_was_trained() -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    backbone = Backbone(
        nn.Sequential(nn.Identity()), LocationMap(layer="0", channels=3, rows=(0,), columns=(0,)), mean=mean, std=std
    )
    pixels = torch.rand(2, 3, 4, 4)
    wanted = (pixels - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    torch.testing.assert_close(backbone.normalise(pixels * 2 - 1), wanted)


def test_threads_do_not_mix_their_maps() -> None:
    backbone = Backbone(Plain(), LocationMap(layer="layer2", channels=2, rows=(0,), columns=(0,)))
    wrong: list[int] = []

    def work(number: int) -> None:
        x = torch.full((1, 1, 4, 4), float(number))
        with torch.no_grad():
            for _ in range(200):
                maps = backbone(x)[1]
                if not torch.allclose(maps, backbone.network.layer2(x)[..., :1, :1]):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_layer_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="must name a layer of the backbone, got 'layer9'"):
        Backbone(Plain(), LocationMap(layer="layer9", channels=1, rows=(0,), columns=(0,)))


def test_tensorflows_batch_norm_constants_come_together() -> None:
    for name, momentum in (("tf_efficientnet_b0", 0.01), ("resnet18", 0.1)):
        norms = [m for m in build_network(name, in_chans=3).modules() if isinstance(m, nn.BatchNorm2d)]
        assert {norm.momentum for norm in norms} == {momentum}
