"""Safetensors and GGUF files: writers that stream tensor after tensor, and small readers for checks. No model knowledge."""
import json
import mmap
import pathlib
import struct
from dataclasses import dataclass
from typing import Callable, Iterable, Sequence

import numpy as np

from . import blocks

ALIGNMENT = 32


@dataclass
class Entry:
    """One tensor of a file. `dims` outermost first; `chunks` yields its bytes, so that a large one never lies in memory."""
    name: str
    kind: str
    dims: Sequence[int]
    chunks: Callable[[], Iterable[bytes]]

    def bytes(self):
        return blocks.byte_size(self.kind, self.dims)


def float_entry(name, kind, array):
    return Entry(name, kind, array.shape, lambda: [blocks.encode_float(array, kind)])


def _write_checked(file, entry):
    written = sum(file.write(chunk) for chunk in entry.chunks())
    if written != entry.bytes():
        raise AssertionError(f"{entry.name}: wrote {written} bytes instead of {entry.bytes()}")


# ---- safetensors

def write_safetensors(path, entries):
    header, offset = {}, 0
    for entry in entries:
        end = offset + entry.bytes()
        header[entry.name] = {"dtype": entry.kind, "shape": list(entry.dims), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for entry in entries:
            _write_checked(file, entry)


def write_safetensors_folder(folder, entries, shards=1):
    """model.safetensors, or `shards` files of about equal size with their index."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if shards == 1:
        write_safetensors(folder / "model.safetensors", entries)
        return
    parts = _split(entries, shards)
    weight_map = {}
    for number, part in enumerate(parts, 1):
        name = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        write_safetensors(folder / name, part)
        weight_map.update({entry.name: name for entry in part})
    index = {"metadata": {"total_size": sum(entry.bytes() for entry in entries)}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


def _split(entries, count):
    total, parts, size = sum(entry.bytes() for entry in entries), [[]], 0
    for entry in entries:
        if size >= total * len(parts) / count and len(parts) < count:
            parts.append([])
        parts[-1].append(entry)
        size += entry.bytes()
    return parts


def read_safetensors(path):
    """{name: float32 array}"""
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + size])
    result = {}
    for name, info in header.items():
        if name != "__metadata__":
            begin, end = info["data_offsets"]
            result[name] = blocks.decode(data[8 + size + begin:8 + size + end], info["dtype"], info["shape"])
    return result


def read_safetensors_folder(folder):
    folder = pathlib.Path(folder)
    index = folder / "model.safetensors.index.json"
    files = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else ["model.safetensors"]
    result = {}
    for name in files:
        result.update(read_safetensors(folder / name))
    return result


# ---- GGUF

@dataclass
class Typed:
    """A metadata value whose GGUF type is not the default of its Python type (see _DEFAULT)."""
    type_id: int
    value: object


_FORMAT = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_DEFAULT = {bool: 7, int: 4, float: 6, str: 8}
_ELEMENT = {bool: 7, int: 5, float: 6, str: 8}  # arrays of integers are i32
STRING, ARRAY = 8, 9


def _text(value):
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def _payload(type_id, value):
    return _text(value) if type_id == STRING else struct.pack("<" + _FORMAT[type_id], value)


def _value(value):
    if isinstance(value, Typed):
        return struct.pack("<I", value.type_id) + _payload(value.type_id, value.value)
    if isinstance(value, (list, tuple)):
        element = _ELEMENT[type(value[0])]
        return struct.pack("<IIQ", ARRAY, element, len(value)) + b"".join(_payload(element, v) for v in value)
    type_id = _DEFAULT[type(value)]
    return struct.pack("<I", type_id) + _payload(type_id, value)


def _padding(size):
    return b"\0" * (-size % ALIGNMENT)


def write_gguf(path, metadata, entries):
    head = [b"GGUF", struct.pack("<IQQ", 3, len(entries), len(metadata))]
    head += [_text(key) + _value(value) for key, value in metadata.items()]
    offset = 0
    for entry in entries:
        dims = list(entry.dims)[::-1] or [1]
        head.append(_text(entry.name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims))
        head.append(struct.pack("<IQ", blocks.TYPES[entry.kind][2], offset))
        offset += entry.bytes() + len(_padding(entry.bytes()))
    head = b"".join(head)
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(head + _padding(len(head)))
        for entry in entries:
            _write_checked(file, entry)
            file.write(_padding(entry.bytes()))


def write_gguf_split(prefix, metadata, entries, parts):
    """PREFIX-00001-of-0000N.gguf ...; the first part carries all metadata. Returns the first path."""
    pieces = _split(entries, parts)
    paths = []
    for number, piece in enumerate(pieces):
        split = {"split.no": Typed(2, number), "split.count": Typed(2, len(pieces)),
                 "split.tensors.count": Typed(5, len(entries))}
        paths.append(f"{prefix}-{number + 1:05d}-of-{len(pieces):05d}.gguf")
        write_gguf(paths[-1], {**metadata, **split} if number == 0 else split, piece)
    return paths[0]


class _Cursor:
    def __init__(self, data):
        self.data, self.at = data, 0

    def unpack(self, layout):
        values = struct.unpack_from("<" + layout, self.data, self.at)
        self.at += struct.calcsize("<" + layout)
        return values if len(values) > 1 else values[0]

    def text(self):
        size = self.unpack("Q")
        self.at += size
        return self.data[self.at - size:self.at].decode()

    def value(self, type_id):
        if type_id == STRING:
            return self.text()
        if type_id == ARRAY:
            element, count = self.unpack("IQ")
            return [self.value(element) for _ in range(count)]
        return self.unpack(_FORMAT[type_id])


def read_gguf(path):
    """(metadata, {name: float32 array}) of one file."""
    with open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    cursor = _Cursor(data)
    if data[:4] != b"GGUF":
        raise ValueError(f"{path}: not a GGUF file")
    cursor.at = 4
    _, tensor_count, value_count = cursor.unpack("IQQ")
    metadata = {}
    for _ in range(value_count):
        key = cursor.text()
        metadata[key] = cursor.value(cursor.unpack("I"))
    infos = []
    for _ in range(tensor_count):
        name, rank = cursor.text(), cursor.unpack("I")
        dims = [cursor.unpack("Q") for _ in range(rank)][::-1]
        infos.append((name, dims, *cursor.unpack("IQ")))
    start = cursor.at + len(_padding(cursor.at))
    kinds = {type_id: kind for kind, (_, _, type_id) in blocks.TYPES.items()}
    tensors = {}
    for name, dims, type_id, offset in infos:
        size = blocks.byte_size(kinds[type_id], dims)
        tensors[name] = blocks.decode(data[start + offset:start + offset + size], kinds[type_id], dims)
    return metadata, tensors
