"""Reads TensorFlow checkpoints ("tensor bundles") without TensorFlow.

``PREFIX.index`` is an uncompressed LevelDB-style table from tensor names to where their bytes lie in
``PREFIX.data-?????-of-?????``. Every checksum is verified. Nothing in these files is code, and nothing is run.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from foveate.weights import BadCheckpointError

MAGIC = 0xDB4775248B80FB57
FOOTER = 48
NUMERIC = {1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 6: "i1", 9: "<i8", 10: "?", 17: "<u2", 19: "<f2"}


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one tensor lies: its type's number, shape, shard, and the place and checksum of its bytes."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int


class TensorBundle:
    """The tensors of one checkpoint by name; each is read when it is asked for."""

    def __init__(self, prefix: str | Path) -> None:
        self.prefix = find_prefix(Path(prefix))
        table = dict(_table(self.prefix.with_name(self.prefix.name + ".index")))
        header = _message(table.pop(b"", b""))
        self.shards = int(header.get(1, [1])[0])
        if header.get(2, [0])[0] != 0:
            raise BadCheckpointError(f"{self.prefix} must be little-endian, got a big-endian checkpoint")
        self.entries = {name.decode(): _entry(value) for name, value in table.items()}

    def read(self, name: str) -> npt.NDArray[Any]:
        """One numeric tensor, its checksum verified."""
        entry = self.entries[name]
        if entry.dtype not in NUMERIC:
            raise BadCheckpointError(f"{name} must be numeric, got a tensor of TensorFlow type {entry.dtype}")
        path = self.prefix.with_name(f"{self.prefix.name}.data-{entry.shard:05d}-of-{self.shards:05d}")
        if not path.is_file():
            raise FileNotFoundError(f"checkpoint needs {path.name} beside its index, got no such file")
        with path.open("rb") as file:
            file.seek(entry.offset)
            data = file.read(entry.size)
        if len(data) < entry.size:
            raise BadCheckpointError(f"{path.name} must hold {entry.size} bytes of {name}, got {len(data)}")
        _verify(data, entry.checksum, f"{name} in {path.name}")
        values = np.frombuffer(data, NUMERIC[entry.dtype])
        if values.size != int(np.prod(entry.shape)):
            raise BadCheckpointError(f"{name} must have shape {entry.shape}, got {values.size} values")
        return values.reshape(entry.shape)


def find_prefix(path: Path) -> Path:
    """A checkpoint's prefix from the prefix itself, from one of its files, or from its folder."""
    if path.is_dir():
        state = path / "checkpoint"
        if not state.is_file():
            raise FileNotFoundError(f"{path} must hold a file named 'checkpoint' or be a prefix, got neither")
        newest = state.read_text(errors="replace").split('"')
        path = path / Path(newest[1]).name if len(newest) > 1 else path
    name = path.name.removesuffix(".index")
    if ".data-" in name:
        name = name[: name.index(".data-")]
    if not path.with_name(name + ".index").is_file():
        raise FileNotFoundError(f"checkpoint must have an index, got no file {path.with_name(name + '.index')}")
    return path.with_name(name)


def _table(path: Path) -> Iterator[tuple[bytes, bytes]]:
    data = path.read_bytes()
    if len(data) < FOOTER or struct.unpack("<Q", data[-8:])[0] != MAGIC:
        raise BadCheckpointError(f"{path.name} must be the index of a TensorFlow checkpoint, got another format")
    try:
        _, at = _handle(data, len(data) - FOOTER)  # of the metaindex, which is empty
        index, _ = _handle(data, at)
        for _, value in _block(data, *index, path.name):
            yield from _block(data, *_handle(value, 0)[0], path.name)
    except (IndexError, struct.error) as error:
        raise BadCheckpointError(f"{path.name} must be a whole index, got one that breaks off") from error


def _block(data: bytes, offset: int, size: int, where: str) -> Iterator[tuple[bytes, bytes]]:
    body, kind = data[offset : offset + size], data[offset + size]
    if kind != 0:
        raise BadCheckpointError(f"{where} must be uncompressed, got compression type {kind}")
    (checksum,) = struct.unpack_from("<I", data, offset + size + 1)
    _verify(body + b"\0", checksum, f"the block at byte {offset} of {where}")
    (restarts,) = struct.unpack_from("<I", body, size - 4)
    end, at, key = size - 4 * (restarts + 1), 0, b""
    while at < end:
        shared, at = _varint(body, at)
        fresh, at = _varint(body, at)
        length, at = _varint(body, at)
        key = key[:shared] + body[at : at + fresh]
        at += fresh
        yield key, body[at : at + length]
        at += length


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    offset, at = _varint(data, at)
    size, at = _varint(data, at)
    return (offset, size), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _message(data: bytes) -> dict[int, list[Any]]:
    """The fields of a protocol buffer by number: integers, or bytes for what is nested."""
    fields: dict[int, list[Any]] = {}
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        value: Any
        if tag & 7 == 0:
            value, at = _varint(data, at)
        elif tag & 7 == 2:
            length, at = _varint(data, at)
            value, at = data[at : at + length], at + length
        elif tag & 7 == 5:
            (value,), at = struct.unpack_from("<I", data, at), at + 4
        else:
            (value,), at = struct.unpack_from("<Q", data, at), at + 8
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _entry(data: bytes) -> Entry:
    fields = _message(data)
    dims = _message(fields.get(2, [b""])[0]).get(2, [])
    return Entry(
        dtype=fields.get(1, [0])[0],
        shape=tuple(_message(dim).get(1, [0])[0] for dim in dims),
        shard=fields.get(3, [0])[0],
        offset=fields.get(4, [0])[0],
        size=fields.get(5, [0])[0],
        checksum=fields.get(6, [0])[0],
    )


def _verify(data: bytes, masked: int, what: str) -> None:
    crc = google_crc32c.value(data)
    if ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF != masked:
        raise BadCheckpointError(f"{what} must match its checksum, got damaged data")
