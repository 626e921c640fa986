"""MATLAB's level 5 files, as far as data sets' lists need them: numbers, text, cells and structures."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

Value = str | list[Any]
Element = tuple[int, memoryview]  # how it is stored, and its bytes

MATRIX, COMPRESSED = 14, 15
STORED_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
STORED_TEXT = {1: "latin-1", 2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
CELL, STRUCTURE, TEXT = 1, 2, 4
NUMBERS = range(6, 16)
COMPLEX = 1 << 11
MOST_BYTES = 1 << 28  # of one variable, unpacked


def read_mat(path: Path) -> dict[str, Value]:
    """The variables by name: text as str, all else as flat lists, column by column; structures are dicts."""
    data = memoryview(path.read_bytes())
    order = {b"\x00\x01IM": "<", b"\x01\x00MI": ">"}.get(bytes(data[124:128]))
    if order is None:
        raise ValueError(f"{path} must be a MATLAB file of level 5 (versions 5 to 7), got another format")
    try:
        return dict(_matrix(element, order) for element in _variables(data[128:], order))
    except (ValueError, LookupError, struct.error, zlib.error, RecursionError) as error:
        raise ValueError(f"{path} must be a whole MATLAB file of lists, got something else: {error}") from error


def _variables(data: memoryview, order: str) -> Iterator[Element]:
    for kind, body in _elements(data, order):
        yield next(_elements(_unpacked(body), order)) if kind == COMPRESSED else (kind, body)


def _unpacked(body: memoryview) -> memoryview:
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(body, MOST_BYTES)
    if not unpacker.eof:
        raise ValueError(f"a variable that is cut off or has more than {MOST_BYTES} bytes")
    return memoryview(data)


def _elements(data: memoryview, order: str) -> Iterator[Element]:
    """What is stored one after the other, each begun by how it is stored and how many bytes it has."""
    at = 0
    while at < len(data):
        kind, size = struct.unpack_from(f"{order}II", data, at)
        start = at + 8
        if kind >> 16:  # up to four bytes are put where the size would be
            kind, size, start = kind & 0xFFFF, kind >> 16, at + 4
        if start + size > len(data):
            raise ValueError(f"{size} bytes where {len(data) - start} are left")
        yield kind, data[start : start + size]
        at = start + size if kind == COMPRESSED else start + size + -(start + size - at) % 8


def _matrix(element: Element, order: str) -> tuple[str, Value]:
    """A variable's name and value; what lies in cells and structures has no name."""
    kind, body = element
    if kind != MATRIX:
        raise ValueError(f"a variable stored as type {kind}")
    if not body:
        return "", []
    flags, shape, name, *rest = _elements(body, order)
    what = _numbers(flags, order)[0]
    value = _value(what & (0xFF | COMPLEX), rest, order)
    if len(value) != math.prod(_numbers(shape, order)):
        raise ValueError(f"{len(value)} values in an array of shape {_numbers(shape, order)}")
    return bytes(name[1]).decode("ascii"), value


def _value(what: int, parts: list[Element], order: str) -> Value:
    if what == CELL:
        return [_matrix(part, order)[1] for part in parts]
    if what == STRUCTURE:
        return _structures(parts, order)
    if what == TEXT:
        return _text(parts[0], order)
    if what in NUMBERS:
        return _numbers(parts[0], order)
    raise ValueError(f"an array of class {what}")


def _structures(parts: list[Element], order: str) -> list[dict[str, Value]]:
    length, names = _numbers(parts[0], order)[0], bytes(parts[1][1])
    fields = [names[at : at + length].split(b"\0")[0].decode("ascii") for at in range(0, len(names), length)]
    values = [_matrix(part, order)[1] for part in parts[2:]]
    rows = range(0, len(values), len(fields))
    return [dict(zip(fields, values[at : at + len(fields)], strict=True)) for at in rows]


def _text(element: Element, order: str) -> str:
    kind, body = element
    encoding = STORED_TEXT[kind]
    wide = encoding in ("utf-16", "utf-32")
    return bytes(body).decode(encoding + {"<": "-le", ">": "-be"}[order] if wide else encoding)


def _numbers(element: Element, order: str) -> list[Any]:
    kind, body = element
    numbers: list[Any] = np.frombuffer(body, f"{order}{STORED_NUMBERS[kind]}").tolist()
    return numbers
