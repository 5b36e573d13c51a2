"""The byte layout of a program. Uses the standard library only, so that the jailed tracer can write it.

    magic 8 bytes | version u16 | header length u32 | header JSON | columns

The header holds sites, forms, inputs, outputs and the column lengths. The columns are little-endian arrays:
the site of each tensor (u32); form and line (u32) and core (u8) of each instruction; tensor (u32) and offset
(i64) of each operand, instruction after instruction; the loop iteration of each instruction (u32, empty if
there are none); the table of iterations; the bytes of constant tensors.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Mapping
from math import isfinite
from typing import Any

from nki_sim.errors import IRError
from nki_sim.forms import Form, Operand, Site

MAGIC = b"NKISIMIR"
VERSION = 4
MAX_BYTES = 1 << 28
MAX_HEADER = 1 << 26
ADDRESS_ROTATION = "address_rotation"
COLUMNS = (
    ("tensor_sites", "I"), ("forms", "I"), ("lines", "I"), ("cores", "B"), ("tensors", "I"), ("offsets", "q"),
    ("nodes", "I"), ("node_parents", "I"), ("node_loops", "I"), ("node_indices", "I"), ("constants", "B"),
)  # fmt: skip

_HEAD = struct.Struct("<8sHI")


def pack(header: Mapping[str, Any], columns: Mapping[str, bytes]) -> bytes:
    """Encode a program from its header fields and its columns."""
    lengths = {name: len(columns[name]) // array(code).itemsize for name, code in COLUMNS}
    text = json.dumps({**header, "lengths": lengths}, allow_nan=False, separators=(",", ":")).encode()
    body = b"".join(columns[name] for name, _ in COLUMNS)
    return _HEAD.pack(MAGIC, VERSION, len(text)) + text + body


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, memoryview]]:
    """Split a program into header and columns; checks lengths, not contents.

    Raises:
        IRError: the bytes do not have this layout.
    """
    if len(data) > MAX_BYTES:
        raise IRError(f"program of {len(data)} bytes, the limit is {MAX_BYTES}")
    if len(data) < _HEAD.size:
        raise IRError("too short for a program")
    magic, version, size = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise IRError("not a program: wrong magic bytes")
    if version != VERSION:
        raise IRError(f"program of version {version}, this simulator reads version {VERSION}")
    if size > MAX_HEADER:
        raise IRError(f"a header of {size} bytes, the limit is {MAX_HEADER}")
    start = _HEAD.size + size
    header = _parse_header(data[_HEAD.size : start])
    return header, _split_columns(memoryview(data)[start:], header.get("lengths"))


def _parse_header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise IRError(f"the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise IRError("the header is not an object")
    return header


def _split_columns(body: memoryview, lengths: Any) -> dict[str, memoryview]:
    columns = {}
    position = 0
    for name, code in COLUMNS:
        count = lengths.get(name) if isinstance(lengths, dict) else None
        if type(count) is not int or count < 0:
            raise IRError(f"length of column {name} is {count!r}")
        end = position + count * array(code).itemsize
        columns[name] = body[position:end]
        position = end
    if position != len(body):
        raise IRError(f"columns of {position} bytes announced, {len(body)} found")
    return columns


def rotation_to_json(chosen: bool | None) -> dict[str, bool]:
    """Return the header field of what a kernel says about address rotation; most kernels say nothing."""
    return {} if chosen is None else {ADDRESS_ROTATION: chosen}


def site_to_json(site: Site) -> list[Any]:
    address = None if site.address is None else list(site.address)
    return [site.name, list(site.shape), site.dtype, site.buffer, site.line, address]


def form_to_json(form: Form) -> list[Any]:
    operands = [_operand_to_json(item) for item in form.operands]
    params = [[name, _to_json_value(value)] for name, value in form.params]
    return [form.op, form.engine, operands, params, [list(hint) for hint in form.hints]]


def _operand_to_json(item: Operand) -> list[Any]:
    dims = [list(pair) for pair in item.dims]
    return [item.role, dims, item.dtype, item.buffer, item.row, item.start, item.column, item.index_step]


def _to_json_value(value: Any) -> Any:
    """Infinities and NaN as text: JSON has no numbers for them."""
    if isinstance(value, float) and not isfinite(value):
        return repr(value)
    return list(value) if isinstance(value, tuple) else value
