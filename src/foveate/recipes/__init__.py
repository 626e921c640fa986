"""Training runs by name: one small TOML file each, with its source, its cost and the figure to expect."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_type_hints

from foveate.data.catalog import DataOptions
from foveate.models import PRESETS
from foveate.plan import Plan
from foveate.recipes.values import Hints, keys_in, keys_of, record, to_toml, typed

HOME = Path(__file__).parent

# What of a model's configuration a recipe does not say: the data do, or it is not to be chosen.
_OF_THE_DATA = ("num_classes", "class_names", "class_order")
_FIXED = ("name", "architecture")

# To give one is to give up the other.
_RIVALS = {"schedule.epochs": "schedule.minutes", "schedule.minutes": "schedule.epochs"}

# What others call it.
_ALIASES = {
    "learning_rate": "lr",
    "eps": "epsilon",
    "l2": "weight_decay",
    "grad_clip": "clip",
    "batch_size": "batch",
    "num_epochs": "epochs",
    "lambda_c": "combined",
    "lambda_r": "sequence",
    "lambda_f": "reinforcement",
    "alpha": "margin",
    "image_size": "size",
    "num_workers": "workers",
    "drop_rate": "dropout",
    "drop_path_rate": "stochastic_depth",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """Where a run comes from, and what it costs and gives; ``notes`` say where paper and code differ."""

    title: str = ""
    source: str = ""
    expected: str = ""
    cost: str = ""
    notes: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOptions:
    """What ``create_model`` is called with; the classes come from the data."""

    name: str
    pretrained: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """All that is to be known of a training run but where its data are."""

    name: str
    about: About
    model: ModelOptions
    data: DataOptions
    plan: Plan


def list_recipes() -> list[str]:
    """The names that ``read_recipe`` knows."""
    return sorted(path.stem for path in HOME.glob("*.toml"))


def read_recipe(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe by name, or from a .toml file, with some of its values changed.

    An override is ``table.key=value`` with a value as TOML has it; what TOML does not know is taken as text.
    ``table.key=`` takes a value back to its default.

    >>> read_recipe("fmow-stage1", ["optimizer.lr=3e-4", "data.size=[448, 448]", "model.name=tnet_b1"])
    """
    path = _find(name_or_path)
    try:
        tables = _read(path)
        changes = dict(_change(text) for text in overrides)
        _override(tables, changes)
        return _recipe(tables, changes, default_name=path.stem)
    except ValueError as error:
        raise ValueError(f"{name_or_path}: {error}") from error


def write_recipe(recipe: Recipe, path: str | Path) -> None:
    """Writes every value of a recipe, defaults too, so that ``read_recipe`` reads back an equal one."""
    tables = dataclasses.asdict(recipe)
    tables["model"] |= tables["model"].pop("options")
    tables |= tables.pop("plan")
    Path(path).write_text(to_toml(tables), encoding="utf-8")


def _find(name_or_path: str | Path) -> Path:
    name, path = str(name_or_path), Path(name_or_path)
    if path.suffix == ".toml":
        if not path.is_file():
            raise FileNotFoundError(f"recipe must be a file, got no file {path}")
        return path
    if name not in (known := list_recipes()):
        raise ValueError(f"recipe must be a known name, or a .toml file, got {name!r}; {_hint(name, known)}")
    return HOME / f"{name}.toml"


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"recipe must be text in UTF-8, got {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"recipe must be TOML, got {error}") from error


def _change(override: str) -> tuple[str, str]:
    key, sign, value = override.partition("=")
    if not sign or not key.strip():
        raise ValueError(f"override must be table.key=value, got {override!r}")
    return key.strip(), value.strip()


def _override(tables: dict[str, Any], changes: Mapping[str, str]) -> None:
    for key, text in changes.items():
        rival = _RIVALS.get(key)
        if rival and text and rival not in changes:
            _put(tables, rival, "")
        _put(tables, key, text)


def _put(tables: dict[str, Any], key: str, text: str) -> None:
    *outer, name = key.split(".")
    for part in outer:
        if not isinstance(tables.get(part), dict):
            tables[part] = {}
        tables = tables[part]
    if text:
        tables[name] = _parse(text)
    else:
        tables.pop(name, None)


def _parse(text: str) -> Any:
    try:
        found = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return found["value"] if len(found) == 1 else text


def _recipe(tables: Mapping[str, Any], changes: Iterable[str], *, default_name: str) -> Recipe:
    plan_hints = get_type_hints(Plan)
    model_hints = _model_hints(tables.get("model"))
    known = [
        *keys_of({"name": str, "about": About, "model": dict, "data": DataOptions} | plan_hints),
        *keys_of(model_hints, "model."),
    ]
    _check_known([*keys_in(tables), *changes], known)
    if not isinstance(name := tables.get("name", default_name), str):
        raise ValueError(f"name must be text, got {name!r}")
    return Recipe(
        name=name,
        about=record(About, tables.get("about", {}), "about"),
        model=_model(model_hints, tables["model"]),
        data=record(DataOptions, tables.get("data", {}), "data"),
        plan=Plan(**{part: record(kind, tables.get(part, {}), part) for part, kind in plan_hints.items()}),
    )


def _model_hints(values: object) -> Hints:
    """What the preset that a recipe names can be told."""
    name = values.get("name") if isinstance(values, Mapping) else None
    if not isinstance(name, str) or name not in PRESETS:
        raise ValueError(f"model.name must be a known model, got {name!r}; {_hint(str(name), PRESETS)}")
    hints = get_type_hints(type(PRESETS[name]()))
    own = {option: hint for option, hint in hints.items() if option not in _OF_THE_DATA + _FIXED}
    # One number stands for both axes.
    pairs = {option: get_args(own[option])[0] | own[option] for option in ("grid", "cell") if option in own}
    return {"name": str, "pretrained": bool} | own | pairs


def _model(hints: Hints, values: object) -> ModelOptions:
    options = typed(hints, values, "model")
    name, pretrained = options.pop("name"), options.pop("pretrained", False)
    try:
        PRESETS[name](**options)
    except ValueError as error:
        raise ValueError(f"[model] {error}") from error
    return ModelOptions(name=name, pretrained=pretrained, options=options)


def _check_known(keys: Iterable[str], known: Sequence[str]) -> None:
    for key in keys:
        table, _, name = key.rpartition(".")
        if table == "model" and name in _OF_THE_DATA:
            raise ValueError(f"{key} must come from the data, got it in the recipe")
        if key not in known:
            raise ValueError(f"recipe key must be known, got {key!r}; {_key_hint(key, known)}")


def _key_hint(key: str, known: Sequence[str]) -> str:
    table, _, name = key.rpartition(".")
    names = {other.rpartition(".")[2] for other in known}
    close = difflib.get_close_matches(_ALIASES.get(name, name), names, n=1)
    meant = [other for other in known if other.rpartition(".")[2] in close]
    here = [other for other in known if other.rpartition(".")[0] == table]
    if meant:
        return f"did you mean {' or '.join([other for other in meant if other in here] or meant)}?"
    return f"known are {', '.join(sorted(here or [other for other in known if '.' not in other]))}"


def _hint(wanted: str, known: Iterable[str]) -> str:
    """The name that may have been meant, or those that there are."""
    close = difflib.get_close_matches(wanted, list(known), n=1)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(sorted(known))}"
