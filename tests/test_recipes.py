from __future__ import annotations

import csv
import dataclasses
import math
import re
import tomllib
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import foveate
from foveate.data.catalog import DataOptions
from foveate.data.garments import SceneOptions
from foveate.models import PRESETS, TNetConfig, WholeImageConfig
from foveate.objectives import contrastive, learn
from foveate.plan import Plan
from foveate.recipes import HOME, About, Recipe, list_recipes, read_recipe, write_recipe
from tests.official import GOLDEN

# What the official commands say and, last, the papers' top-1:
# epochs, batch, lr, backbone's lr, drop, locations, lambda_c = lambda_r, dropout, stochastic depth, L2, contrastive
TNET_ON_BIRDS = (1e-3, 1e-4, 0.9, (5,), 0.3, 0.75, 0.5, 1e-4)
BASELINE_ON_BIRDS = (1e-3, 5e-5, 0.9, None, 1.0, 0.75, 0.5, 1e-4)
PUBLISHED: dict[str, tuple[Any, ...]] = {
    "imagenet-tnet": (200, 64, 1e-4, None, 0.8, (3,), 0.3, 0.5, 0, 0, 0, "74.41"),
    "imagenet-bagnet77": (175, 64, 1e-4, None, 160 / 175, None, 1.0, 0.625, 0, 0, 0, "73.42"),
    "fmow-stage1": (40, 64, 1e-3, None, 0.8, (2,), 0.2, 0.5, 0.3, 0, 0, "71.46"),
    "fmow-stage2": (10, 64, 1e-3, None, 0.8, (2, 1), 0.05, 0.5, 0.5, 0, 0, "72.16"),
    "fmow-crops-224": (65, 64, 1e-3, None, 0.8, None, 1.0, 0.75, 0.5, 1e-5, 0, "69.7"),
    "fmow-224": (60, 64, 1e-3, None, 0.8, None, 1.0, 0.75, 0.5, 1e-5, 0, "62.8"),
    "fmow-448": (30, 32, 1e-3, None, 0.8, None, 1.0, 0.75, 0.3, 1e-5, 0, "69.83"),
    "fmow-896": (30, 32, 1e-3, None, 0.8, None, 1.0, 0.3, 0.2, 1e-5, 0, "70.6"),
    "cub-tnet-b0": (200, 64, *TNET_ON_BIRDS, 100, "87.75"),
    "cub-tnet-b1": (200, 64, *TNET_ON_BIRDS, 100, "88.33"),
    "cub-tnet-b2": (200, 64, *TNET_ON_BIRDS, 100, "88.35"),
    "cub-tnet-b3": (200, 64, *TNET_ON_BIRDS, 100, "89.35"),
    "cub-tnet-b4": (125, 64, *TNET_ON_BIRDS, 100, "90.06"),
    "cub-en-b0": (200, 64, *BASELINE_ON_BIRDS, 100, "86.49"),
    "cub-en-b1": (200, 64, *BASELINE_ON_BIRDS, 100, "88.25"),
    "cub-en-b2": (200, 64, *BASELINE_ON_BIRDS, 100, "88.13"),
    "cub-en-b3": (200, 64, *BASELINE_ON_BIRDS, 100, "88.42"),
    "cub-en-b4": (200, 64, *BASELINE_ON_BIRDS, 100, "89.08"),
    "nabirds-tnet-b0": (100, 64, *TNET_ON_BIRDS, 50, "86.56"),
    "nabirds-tnet-b1": (100, 64, *TNET_ON_BIRDS, 50, "87.85"),
    "nabirds-tnet-b2": (100, 64, *TNET_ON_BIRDS, 50, "87.52"),
    "nabirds-tnet-b3": (100, 64, 1e-3, 1e-4, 0.9, (3,), 0.3, 0.75, 0.5, 1e-4, 50, "88.33"),
    "nabirds-tnet-b4": (100, 64, 1e-3, 1e-4, 0.9, (3,), 0.3, 0.75, 0.5, 1e-4, 50, "88.41"),
    "nabirds-en-b0": (100, 64, *BASELINE_ON_BIRDS, 50, "84.97"),
    "nabirds-en-b1": (100, 64, *BASELINE_ON_BIRDS, 50, "86.55"),
    "nabirds-en-b2": (100, 64, *BASELINE_ON_BIRDS, 50, "86.79"),
    "nabirds-en-b3": (100, 64, *BASELINE_ON_BIRDS, 50, "87.63"),
    "nabirds-en-b4": (100, 64, *BASELINE_ON_BIRDS, 50, "87.87"),
}
# Name in the golden table, augmentation, images for training, whether weights come pre-trained, what is decayed.
DATA_SETS: dict[str, tuple[Any, ...]] = {
    "imagenet": ("ImageNet", "photometric", 1_281_167, False, "all"),
    "fmow": ("fMoW", "photometric", 363_572, False, "all"),
    "cub": ("CUB", "geometric", 5_994, True, "new"),
    "nabirds": ("NABirds", "geometric", 23_929, True, "new"),
}

OWN = """
[model]
name = "tnet"
backbone = "resnet18"
grid = 4
[schedule]
minutes = 10
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A user's own recipe: as little as there can be in one."""
    path = tmp_path / "own.toml"
    path.write_text(OWN, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_values(name: str) -> None:
    recipe = read_recipe(name)
    plan, options = recipe.plan, recipe.model.options
    assert (
        plan.schedule.epochs,
        plan.schedule.batch,
        plan.optimizer.lr,
        plan.optimizer.backbone_lr,
        *plan.schedule.drops,
        plan.walk.locations,
        plan.objective.combined,
        options.get("spatial_dropout" if name.startswith("imagenet") else "dropout"),
        options.get("stochastic_depth", 0),
        plan.optimizer.weight_decay,
        plan.objective.contrastive,
        re.match(r"top-1 ([\d.]+) %", recipe.about.expected)[1],  # type: ignore[index]
    ) == PUBLISHED[name]
    assert (plan.schedule.shape, plan.schedule.factor, plan.schedule.warmup) == ("step", 0.1, 0)
    assert (plan.optimizer.betas, plan.optimizer.epsilon) == ((0.9, 0.999), 1e-7)
    assert plan.optimizer.clip == plan.optimizer.decoupled == plan.teaching.share == plan.walk.location_dropout == 0
    assert (plan.objective.margin, plan.walk.select, plan.walk.samples) == (0.4, "top_k", 1)
    assert plan.objective.level_weights is None
    if recipe.model.name.startswith("tnet"):
        assert (plan.objective.rule, plan.objective.reinforcement) == ("official", 0.1)
        assert plan.objective.sequence == plan.objective.combined
    assert plan.objective.cap == (2 if name == "fmow-stage2" else None)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_data_and_models(name: str) -> None:
    recipe, family = read_recipe(name), name.partition("-")[0]
    _, augmentation, images, pretrained, decayed = DATA_SETS[family]
    assert recipe.data.kind == ("fmow-crops" if name == "fmow-crops-224" else family)
    assert (recipe.data.augmentation, recipe.data.antialias, recipe.data.scene) == (augmentation, False, None)
    assert (recipe.model.pretrained, recipe.plan.optimizer.decayed) == (pretrained, decayed)
    sides = {"imagenet": "224", "fmow-stage1": "448", "fmow-stage2": "896", "cub": "448", "nabirds": "448"}
    assert str(recipe.data.size) == sides.get(name, sides.get(family, name.rpartition("-")[2]))
    models = {"fmow": "tnet_fmow" if "stage" in name else "efficientnet_b0", "imagenet-tnet": "tnet_imagenet"}
    bird = f"{'tnet' if 'tnet' in name else 'efficientnet'}_b{name[-1]}"
    assert recipe.model.name == models.get(name, models.get(family, "bagnet77" if family == "imagenet" else bird))
    # Where papers report on the images that would choose the best model, none are put aside.
    assert (recipe.data.validation > 0) == (family == "fmow")
    assert f"{recipe.plan.schedule.epochs:g} epochs x {images:,} images" in recipe.about.cost


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_cost_is_that_of_the_papers_tables(name: str) -> None:
    """The paper's FLOPs, from the table that the models' own counts are tested against."""
    recipe, data = read_recipe(name), DATA_SETS[name.partition("-")[0]][0]
    told = re.search(r"([\d.]+) B FLOPs an image(?: with (\d) locations)?", recipe.about.cost)
    assert told is not None
    size = f"@{recipe.data.size}" if data == "fMoW" else ""
    model = {"t": "TNet", "e": f"EfficientNet-B{recipe.model.name[-1]}{size}", "b": "BagNet-77"}[recipe.model.name[0]]
    if model == "TNet" and data in ("CUB", "NABirds"):
        model += f"-B{recipe.model.name[-1]}"
    with (GOLDEN / "tnet_counts.csv").open(newline="") as file:
        rows = {
            (row["model"], row["dataset"], row["locations"][0]): row["paper_flops_B"] for row in csv.DictReader(file)
        }
    assert float(told[1]) == float(rows[model, data, told[2] or "-"])


def test_all_published_runs_are_there() -> None:
    assert set(PUBLISHED) <= set(list_recipes())
    assert "default" in list_recipes()


@pytest.mark.parametrize("name", list_recipes())
def test_shipped_recipes(name: str, tmp_path: Path) -> None:
    recipe = read_recipe(name)
    assert recipe.name == name
    texts = dataclasses.asdict(recipe.about)
    assert all(texts.pop(text) for text in ("title", "source", "expected", "cost")), texts
    assert PRESETS[recipe.model.name](num_classes=3, **recipe.model.options).num_classes == 3
    write_recipe(recipe, tmp_path / "recipe.toml")
    assert read_recipe(tmp_path / "recipe.toml") == recipe
    assert not re.search(r'"(/|~|\w:\\)', (HOME / f"{name}.toml").read_text(encoding="utf-8")), "an absolute path"


def test_shipped_recipes_are_whole_in_themselves() -> None:
    """No inheritance: a file says everything that is not the default of the option classes."""
    for name in list_recipes():
        assert {"about", "model", "schedule"} <= set(tomllib.loads((HOME / f"{name}.toml").read_text("utf-8")))


def test_bagnets_rate_drops_when_160_of_200_epochs_would_have_passed() -> None:
    schedule, epoch = read_recipe("imagenet-bagnet77").plan.schedule, 1_281_167 // 64
    steps = 175 * epoch
    assert [schedule.rate(step / steps) for step in (0, 160 * epoch, 160 * epoch + 1)] == [1, 1, 0.1]


@pytest.mark.parametrize("name", ["fmow-448", "cub-en-b0"])
def test_baselines_learn_from_plain_cross_entropy(name: str) -> None:
    rule = read_recipe(name).plan.objective
    model = foveate.create_model("whole_image", backbone="test_resnet.r160_in1k", num_classes=3).train()
    labels = torch.tensor([0, 1, 0, 2])
    prediction = model(torch.rand(4, 3, 64, 64))
    assert prediction.combined is not None
    expected = F.cross_entropy(prediction.logits, labels)
    if name == "cub-en-b0":
        expected = expected + 100 * contrastive(prediction.combined, labels, 0.4)
    torch.testing.assert_close(learn(prediction, labels, torch.tensor(0.5), rule).loss, expected)


def test_a_small_recipe(own: Path) -> None:
    recipe = read_recipe(own)
    assert (recipe.name, recipe.about, recipe.data) == ("own", About(), DataOptions())
    assert (recipe.model.name, recipe.model.pretrained) == ("tnet", False)
    assert recipe.model.options == {"backbone": "resnet18", "grid": 4}
    assert recipe.plan == Plan(schedule=dataclasses.replace(Plan().schedule, epochs=None, minutes=10))
    assert read_recipe(str(own)) == recipe


def changed(*overrides: str, name: str = "cub-tnet-b0") -> Recipe:
    return read_recipe(name, overrides)


def test_overrides() -> None:
    before = changed()
    assert changed("optimizer.lr=3e-4").plan.optimizer == dataclasses.replace(before.plan.optimizer, lr=3e-4)
    assert changed("optimizer.lr=1", "optimizer.lr = 2").plan.optimizer.lr == 2
    assert isinstance(changed("optimizer.lr=1").plan.optimizer.lr, float)
    assert changed("data.size=[448, 512]").data.size == (448, 512)
    assert changed("data.size=64").data.size == 64
    assert changed("data.augmentation=none").data.augmentation == "none"
    assert changed('data.augmentation="flips"').data.augmentation == "flips"
    assert changed("walk.locations=[3]").plan.walk.locations == (3,)
    assert changed("walk.locations=[]").plan.walk.locations == ()
    assert changed("engine.workers=0").plan.engine.workers == 0
    assert changed("engine.precision=16").plan.engine.precision == "16"
    assert changed("engine.precision=bf16").plan.engine.precision == "bf16"
    assert changed("teaching.guide=false").plan.teaching.guide is False
    assert changed("about.title=What I tried = found").about.title == "What I tried = found"
    assert changed("name=mine").name == "mine"


def test_overrides_of_the_model() -> None:
    assert changed("model.pretrained=false").model.pretrained is False
    assert changed("model.dropout=0.2").model.options["dropout"] == 0.2
    assert changed("model.cell=[0.3, 0.4]").model.options["cell"] == (0.3, 0.4)
    assert changed("model.cell=1").model.options["cell"] == 1.0
    other = changed("model.name=tnet", "model.backbone=resnet18").model
    assert (other.name, other.options["backbone"]) == ("tnet", "resnet18")
    mapped = changed("model.location_map={layer='x', channels=1, rows=[1,2,3,4,5], columns=[1,2,3,4,5]}")
    assert PRESETS["tnet_b0"](**mapped.model.options).location_map.layer == "x"  # type: ignore[union-attr]


def test_nothing_takes_a_value_back_to_its_default() -> None:
    assert changed("objective.cap=", name="fmow-stage2").plan.objective.cap is None
    assert changed("optimizer.backbone_lr=").plan.optimizer.backbone_lr is None
    assert changed("optimizer.epsilon=").plan.optimizer.epsilon == 1e-8
    assert changed("optimizer=").plan.optimizer == Plan().optimizer
    assert "dropout" not in changed("model.dropout=").model.options


def test_epochs_and_minutes_exclude_each_other(own: Path) -> None:
    schedule = changed("schedule.minutes=5").plan.schedule
    assert (schedule.epochs, schedule.minutes) == (None, 5)
    assert read_recipe(own, ["schedule.epochs=2"]).plan.schedule.minutes is None
    with pytest.raises(ValueError, match=r"either epochs or minutes, got 1\.0 and 2\.0"):
        changed("schedule.epochs=1", "schedule.minutes=2")
    with pytest.raises(ValueError, match="either epochs or minutes, got None and None"):
        changed("schedule.epochs=")


def test_scenes_are_a_table_in_a_table() -> None:
    scene = changed("data.kind=garments", "data.scene.side=256", "data.scene.scale=[1, 2]").data.scene
    assert scene == SceneOptions(side=256, scale=(1, 2))
    assert changed("data.kind=garments", "data.scene={side=256}").data.scene == SceneOptions(side=256)
    assert changed("data.kind=garments", "data.scene={side=256}", "data.scene=").data.scene is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.learning_rate=1", "known, got 'optimizer.learning_rate'; did you mean optimizer.lr?"),
        ("optimizer.learning_rate=", "known, got 'optimizer.learning_rate'; did you mean optimizer.lr?"),
        ("optimiser.lr=1", "known, got 'optimiser.lr'; did you mean optimizer.lr?"),
        ("lr=1", "known, got 'lr'; did you mean optimizer.lr?"),
        ("optimizer.batch_size=1", "known, got 'optimizer.batch_size'; did you mean schedule.batch?"),
        ("seed=1", "known, got 'seed'; did you mean data.seed or engine.seed?"),
        ("engine.sead=1", "known, got 'engine.sead'; did you mean engine.seed?"),
        ("model.gird=5", "known, got 'model.gird'; did you mean model.grid?"),
        ("model.architecture=tnet", "known, got 'model.architecture'"),
        ("data.scene.fragmets=5", "known, got 'data.scene.fragmets'; did you mean data.scene.fragments?"),
        ("data.scene={fragmets=5}", "known, got 'data.scene.fragmets'; did you mean data.scene.fragments?"),
        (
            "walk.zzz=5",
            "known, got 'walk.zzz'; known are walk.location_dropout, walk.locations, walk.samples, walk.s",
        ),
        ("zzz.zzz=5", "known, got 'zzz.zzz'; known are about, data, engine, model, name, objective, optimizer, sch"),
        ("model.num_classes=5", "model.num_classes must come from the data"),
        ("model.class_names=['a']", "model.class_names must come from the data"),
        ("model.name=tnet_b00", "model.name must be a known model, got 'tnet_b00'; did you mean tnet_b0?"),
        ("model=", "model.name must be a known model, got None; known are bagnet77, "),
        ("lr", "override must be table.key=value, got 'lr'"),
        ("=1", "override must be table.key=value, got '=1'"),
    ],
)
def test_unknown_keys_are_refused(override: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^cub-tnet-b0: .*{re.escape(message)}"):
        changed(override)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.lr=fast", "optimizer.lr must be a number, got 'fast'"),
        ("optimizer.lr=true", "optimizer.lr must be a number, got True"),
        ("optimizer.lr=nan", "optimizer.lr must be a number, got nan"),
        (f"optimizer.lr=1{'0' * 400}", "optimizer.lr must be a number, got 1000"),
        ("optimizer.lr.x=1", "recipe key must be known, got 'optimizer.lr.x'; known are about, data"),
        ("optimizer.betas=0.9", "optimizer.betas must be an array of 2 numbers, got 0.9"),
        ("optimizer.betas=[0.9]", "optimizer.betas must be an array of 2 numbers, got [0.9]"),
        ("optimizer.betas=[0.9, 'x']", "optimizer.betas must be an array of 2 numbers, got [0.9, 'x']"),
        ("optimizer=1", "optimizer must be a table, got 1"),
        ("name=1", "name must be text, got 1"),
        ("schedule.batch=8.0", "schedule.batch must be a whole number, got 8.0"),
        ("schedule.batch=true", "schedule.batch must be a whole number, got True"),
        ("objective.cap=none", "objective.cap must be a whole number or left out, got 'none'"),
        ("engine.precision=17", "engine.precision must be one of '32', 'bf16', '16', got 17"),
        ("optimizer.decayed=some", "optimizer.decayed must be one of 'all', 'new', got 'some'"),
        ("walk.locations=3", "walk.locations must be an array of whole numbers or left out, got 3"),
        ("teaching.guide=1", "teaching.guide must be true or false, got 1"),
        ("data.size=[448,", "data.size must be a whole number or an array of 2 whole numbers, got '[448,'"),
        ("data.size=1\nchannels=3", "data.size must be a whole number or an array of 2 whole numbers, got '1\\nch"),
        ("data.scene=1", "data.scene must be a table or left out, got 1"),
        ("about.title=3", "about.title must be text, got 3"),
        ("model.pretrained=1", "model.pretrained must be true or false, got 1"),
        ("model.locations=[1.5]", "model.locations must be an array of whole numbers or left out, got [1.5]"),
        ("model.location_map={layer='x'}", "model.location_map.channels must be a whole number, got nothing"),
    ],
)
def test_wrong_types_are_refused(override: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^cub-tnet-b0: {re.escape(message)}"):
        changed(override)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.lr=-1", "[optimizer] lr must be positive, got lr -1.0"),
        ("objective.combined=2", "[objective] combined must be in [0, 1], got 2.0"),
        ("teaching.share=2", "[teaching] share must be in [0, 1], got 2.0"),
        ("data.kind=cubs", "[data] data.kind must be one of "),
        ("data.scene.side=2", "[data.scene] side must be at least twice"),
        ("model.dropout=1.5", "[model] dropout must be in [0, 1), got 1.5"),
        ("model.locations=[99]", "[model] locations must be whole numbers from 0 to the grid's 25 cells"),
    ],
)
def test_wrong_values_come_with_their_table(override: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^cub-tnet-b0: {re.escape(message)}"):
        changed(override)


def test_mistakes_in_a_file_name_it(own: Path) -> None:
    for text, message in (
        (OWN + "epochs 3\n", "recipe must be TOML, got Expected '=' after a key .*at line 8, column 8"),
        (OWN + "batch = 'many'\n", r"schedule\.batch must be a whole number, got 'many'"),
        (OWN + "[optimiser]\nlr = 1\n", r"got 'optimiser\.lr'; did you mean optimizer\.lr\?"),
        (OWN + "[optimiser]\n", r"got 'optimiser'; did you mean optimizer\?"),
        (OWN + "[[walk]]\nsamples = 1\n", r"walk must be a table, got \[\{'samples': 1\}\]"),
        ("[schedule]\nepochs = 1\n", r"model\.name must be a known model, got None"),
        ("[model]\nname = 3\n", r"model\.name must be a known model, got 3"),
        ("[model]\nname = 'tnet_b0'\n", r"\[schedule\] schedule must have either epochs or minutes"),
        (OWN.replace("grid", "base"), None),
    ):
        own.write_text(text, encoding="utf-8")
        if message is None:
            assert read_recipe(own).model.options["base"] == 4
            continue
        with pytest.raises(ValueError, match=f"^{re.escape(str(own))}: .*{message}"):
            read_recipe(own)
    own.write_bytes(b"name = '\xff'")
    with pytest.raises(ValueError, match=r"own\.toml: recipe must be text in UTF-8"):
        read_recipe(own)


def test_unknown_recipes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"known name, or a \.toml file, got 'fmow-stage-1'; did you mean fmow-stage1\?"
    ):
        read_recipe("fmow-stage-1")
    with pytest.raises(ValueError, match=r"got 'zzz'; known are .*cub-en-b0, .*default, fmow-224"):
        read_recipe("zzz")
    with pytest.raises(FileNotFoundError, match=r"recipe must be a file, got no file .*mine\.toml"):
        read_recipe(tmp_path / "mine.toml")


@settings(max_examples=50, deadline=None)
@given(title=st.text(), notes=st.text(alphabet="\x00\x1f\x7f\x85\r\n\t\"\\'#=[]"), lr=st.floats(1e-300, 1e300))
def test_whatever_is_written_is_read_back(
    title: str, notes: str, lr: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = changed(
        "data.kind=garments", "data.scene.side=300", "walk.locations=[]", "objective.level_weights=[1, 0.1]"
    )
    recipe = dataclasses.replace(
        before,
        name=title,
        about=About(title=title, notes=notes),
        plan=dataclasses.replace(before.plan, optimizer=dataclasses.replace(before.plan.optimizer, lr=lr)),
    )
    path = tmp_path_factory.mktemp("written") / "recipe.toml"
    write_recipe(recipe, path)
    assert read_recipe(path) == recipe


def test_a_location_map_is_written_and_read_back(tmp_path: Path) -> None:
    recipe = changed(
        "model.location_map={layer='x', channels=1, rows=[1,2,3,4,5], columns=[1,2,3,4,5]}", "model.grid=5"
    )
    write_recipe(recipe, tmp_path / "recipe.toml")
    assert read_recipe(tmp_path / "recipe.toml") == recipe


def test_every_value_is_written(own: Path) -> None:
    """A run's own recipe holds defaults too, so that it means the same when these have changed."""
    recipe = read_recipe(own)
    write_recipe(recipe, own)
    written = tomllib.loads(own.read_text(encoding="utf-8"))
    for table, values in (dataclasses.asdict(recipe.plan) | {"data": dataclasses.asdict(recipe.data)}).items():
        told = {name for name, value in values.items() if value is not None}
        assert set(written[table]) == told
    assert math.isclose(written["schedule"]["minutes"], 10)


def test_whatever_may_be_left_out_is_none_then() -> None:
    """What is None is not written, so reading must give None."""
    kinds: list[Any] = [
        About,
        DataOptions,
        SceneOptions,
        TNetConfig,
        WholeImageConfig,
        *get_type_hints(Plan).values(),
    ]
    for kind in kinds:
        hints = get_type_hints(kind)
        for part in dataclasses.fields(kind):
            if NoneType in get_args(hints[part.name]):
                assert part.default is None, f"{kind.__name__}.{part.name}"
