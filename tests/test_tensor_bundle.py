from __future__ import annotations

import struct
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from foveate.tensor_bundle import FOOTER, MAGIC, TensorBundle, find_prefix
from foveate.weights import BadCheckpointError

SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


def masked(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


def block(entries: list[tuple[bytes, bytes]], kind: int = 0) -> bytes:
    """A table block with shared prefixes, as LevelDB writes it."""
    body, last = b"", b""
    for key, value in entries:
        shared = next(
            (i for i, (a, b) in enumerate(zip(key, last, strict=False)) if a != b), min(len(key), len(last))
        )
        body += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    body += struct.pack("<II", 0, 1)
    return body + bytes([kind]) + struct.pack("<I", masked(body + bytes([kind])))


def write(
    folder: Path, tensors: dict[str, np.ndarray], *, shards: int = 1, kind: int = 0, endianness: int = 0
) -> Path:
    """A checkpoint of our own making, its tensors dealt out over shards."""
    data, entries = [b""] * shards, [(b"", field(1, shards) + field(2, endianness))]
    for number, (name, value) in enumerate(sorted(tensors.items())):
        raw, shard = value.tobytes(), number % shards
        shape = b"".join(field(2, field(1, size)) for size in value.shape)
        dtype = {"f": 1, "i": 9, "S": 7}[value.dtype.kind]
        entry = field(1, dtype) + field(2, shape) + field(3, shard) + field(4, len(data[shard])) + field(5, len(raw))
        entries.append((name.encode(), entry + varint(6 << 3 | 5) + struct.pack("<I", masked(raw))))
        data[shard] += raw
    middle = len(entries) // 2
    table, index = b"", []
    for part in (entries[:middle], entries[middle:]):
        written = block(part, kind)
        index.append((part[-1][0] + b"~", varint(len(table)) + varint(len(written) - 5)))
        table += written
    meta, top = block([]), block(index)
    handles = varint(len(table)) + varint(len(meta) - 5) + varint(len(table) + len(meta)) + varint(len(top) - 5)
    footer = handles.ljust(FOOTER - 8, b"\0") + struct.pack("<Q", MAGIC)
    (folder / "model.index").write_bytes(table + meta + top + footer)
    for shard, content in enumerate(data):
        (folder / f"model.data-{shard:05d}-of-{shards:05d}").write_bytes(content)
    return folder / "model"


TENSORS = {
    "a/kernel": np.arange(12, dtype=np.float32).reshape(3, 4),
    "a/kernel_2": np.float32([[1.5]]),
    "a/scalar": np.array(3.25, dtype=np.float32),
    "step": np.array(1234567890123),
    "b": np.zeros((0, 5), np.float32),
    "text": np.array(b"words"),
}


@pytest.mark.parametrize("shards", [1, 3])
def test_what_was_written_is_read(tmp_path: Path, shards: int) -> None:
    bundle = TensorBundle(write(tmp_path, TENSORS, shards=shards))
    assert set(bundle.entries) == set(TENSORS)
    for name, value in TENSORS.items():
        if name != "text":
            read = bundle.read(name)
            assert read.shape == value.shape
            assert np.array_equal(read, value)
    with pytest.raises(BadCheckpointError, match="text must be numeric"):
        bundle.read("text")


def test_a_real_checkpoint_is_read(checkpoint: Path) -> None:
    bundle = TensorBundle(checkpoint)
    assert bundle.read("baseline_var" + SUFFIX) == np.float32(0.4375)
    kernel = bundle.read("feature_extraction.Sstem.Sconv2d.Skernel" + SUFFIX)
    assert kernel.shape == (3, 3, 3, 32)
    assert kernel.dtype == np.float32


def test_every_way_to_name_a_checkpoint(checkpoint: Path) -> None:
    folder = checkpoint.parent
    for way in (checkpoint, folder, folder / "ckpt-0.index", folder / "ckpt-0.data-00000-of-00001"):
        assert find_prefix(way) == checkpoint


def test_every_flipped_bit_of_the_index_is_noticed(tmp_path: Path) -> None:
    """Or does no harm: the padding of the footer and the unused metaindex are not read."""
    path = write(tmp_path, TENSORS).with_suffix(".index")
    whole = path.read_bytes()
    noticed = 0
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            bundle = TensorBundle(path)
            assert all(np.array_equal(bundle.read(n), v) for n, v in TENSORS.items() if n != "text")
        except BadCheckpointError:
            noticed += 1
    assert noticed > 0.8 * len(whole)


def test_every_cut_of_the_index_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path, TENSORS).with_suffix(".index")
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(BadCheckpointError, match=r"must be the index"):
            TensorBundle(path)
    footer, noticed = whole[-FOOTER:], 0
    for length in range(len(whole) - FOOTER):  # what was lost lies in the middle
        path.write_bytes(whole[:length] + footer)
        with pytest.raises(BadCheckpointError) as caught:
            TensorBundle(path)
        noticed += "one that breaks off" in str(caught.value)
    assert noticed > 0


def test_damaged_data_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path, TENSORS).with_name("model.data-00000-of-00001")
    whole = path.read_bytes()
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    bundle = TensorBundle(tmp_path / "model")
    with pytest.raises(BadCheckpointError, match=r"a/kernel in model\.data-00000-of-00001 must match"):
        bundle.read("a/kernel")
    path.write_bytes(whole[:20])
    with pytest.raises(BadCheckpointError, match="must hold 48 bytes of a/kernel, got 20"):
        bundle.read("a/kernel")
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"needs model\.data-00000-of-00001"):
        bundle.read("a/kernel")


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpointError, match="got compression type 1"):
        TensorBundle(write(tmp_path, TENSORS, kind=1))
    with pytest.raises(BadCheckpointError, match="big-endian"):
        TensorBundle(write(tmp_path, TENSORS, endianness=1))
    with pytest.raises(FileNotFoundError, match="must have an index"):
        TensorBundle(tmp_path / "nothing")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(FileNotFoundError, match="a file named 'checkpoint'"):
        TensorBundle(empty)
