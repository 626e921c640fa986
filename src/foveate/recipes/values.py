"""Tables of plain values, as TOML has them -> records, each value of its annotated type; and back to text."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")
Hints = Mapping[str, Any]
"""The names that a table may hold, and their annotations."""

_ONE = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_MANY = {int: "whole numbers", float: "numbers", str: "texts"}


class _UnfitError(Exception):
    """A value is not of the type that was tried."""


def record(kind: type[Record], values: object, key: str) -> Record:
    """What the table at ``key`` of a recipe describes."""
    hints = get_type_hints(kind)
    given = typed(hints, values, key)
    for part in fields(kind):  # type: ignore[arg-type]
        if part.name not in given and part.default is MISSING and part.default_factory is MISSING:
            raise ValueError(f"{key}.{part.name} must be {_expected(hints[part.name])}, got nothing")
    try:
        return kind(**given)
    except ValueError as error:
        raise ValueError(f"[{key}] {error}") from error


def typed(hints: Hints, values: object, key: str) -> dict[str, Any]:
    """The values of the table at ``key``, each of its annotated type; their names must be known."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{key} must be a table, got {values!r}")
    return {name: _typed(hints[name], value, f"{key}.{name}") for name, value in values.items()}


def _typed(hint: Any, value: object, key: str) -> Any:
    for kind in _alternatives(hint):
        try:
            return _fit(kind, value, key)
        except _UnfitError:
            continue
    raise ValueError(f"{key} must be {_expected(hint)}, got {value!r}")


def _fit(kind: Any, value: object, key: str) -> Any:
    if is_dataclass(kind) and isinstance(kind, type) and isinstance(value, Mapping):
        return record(kind, value, key)
    if get_origin(kind) is Literal:
        for option in get_args(kind):
            if str(option) == str(value):  # precision = 16 is as good as precision = "16"
                return option
    if get_origin(kind) is tuple and isinstance(value, list):
        return _fit_array(get_args(kind), value, key)
    # isinstance would take true for 1.
    if kind is float and (type(value) is float or type(value) is int) and abs(value) <= sys.float_info.max:
        return float(value)
    if kind in (int, bool, str) and type(value) is kind:
        return value
    raise _UnfitError


def _fit_array(kinds: tuple[Any, ...], values: list[object], key: str) -> tuple[Any, ...]:
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(values)
    if len(kinds) != len(values):
        raise _UnfitError
    return tuple(_fit(kind, value, key) for kind, value in zip(kinds, values, strict=True))


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _expected(hint: Any) -> str:
    """What a value must be, in words."""
    kinds = _alternatives(hint)
    if len(kinds) > 1:
        return " or ".join("left out" if kind is NoneType else _expected(kind) for kind in kinds)
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(repr, get_args(hint)))}"
    if get_origin(hint) is tuple:
        first, *others = get_args(hint)
        count = "" if Ellipsis in others else f"{1 + len(others)} "
        return f"an array of {count}{_MANY[first]}"
    return _ONE.get(hint, "a table")


def keys_of(hints: Hints, prefix: str = "") -> Iterator[str]:
    """Every key that tables of these annotations may hold, with dots between the names of tables and values."""
    for name, hint in hints.items():
        yield prefix + name
        for kind in _alternatives(hint):
            if is_dataclass(kind) and isinstance(kind, type):
                yield from keys_of(get_type_hints(kind), f"{prefix}{name}.")


def keys_in(table: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """Every key that a table does hold."""
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from keys_in(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def to_toml(table: Mapping[str, object], key: str = "") -> str:
    """A table as TOML; what is None is left out."""
    inner = {name: value for name, value in table.items() if isinstance(value, Mapping)}
    plain = {name: value for name, value in table.items() if value is not None and name not in inner}
    lines = [f"[{key}]"] if key else []
    lines += [f"{name} = {_text(value)}" for name, value in plain.items()]
    parts = ["\n".join(lines) + "\n"] if lines else []
    parts += [to_toml(value, f"{key}.{name}" if key else name) for name, value in inner.items()]
    return "\n".join(parts)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # A JSON string is a TOML string, but for the one control character that JSON does not escape.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    return repr(value)
