"""The traced programs of measured kernels, kept so that anybody can predict them again without the kernels.

A program is what a trace gives: instructions, shapes and places, no text of a kernel. `programs.xz` holds an
index (JSON) and, for each program, its header and its columns. Columns are stored as differences, byte by
byte, which makes them a hundred times smaller. Programs that several entries share are stored once.
"""

from __future__ import annotations

import json
import lzma
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measured.cases import Case, CaseError
from nki_sim.errors import IRError
from nki_sim.program import wire
from nki_sim.timing.counters import ConventionName

STORE = Path(__file__).with_name("programs.xz")

_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 26}]
_SIZE = struct.Struct("<I")
_TYPES = {"B": "<u1", "I": "<u4", "q": "<i8"}


@dataclass(frozen=True)
class StoredKernel:
    """A measured kernel without its text; `program` is the place of its program in the store."""

    name: str
    problem: str
    group: str
    target: str
    config: Mapping[str, int]
    measured: Mapping[str, float]
    counters: ConventionName | None
    program: int


def write_store(cases: Sequence[tuple[Case, Path]], to: Path = STORE) -> None:
    """Write the programs of some cases, each with the file of its program."""
    numbers: dict[bytes, int] = {}
    index = [
        replace(_describe_case(case, numbers.setdefault(file.read_bytes(), len(numbers))), name=name)
        for (case, file), name in zip(cases, _unique_names([case for case, _ in cases]), strict=True)
    ]
    parts = [json.dumps([asdict(one) for one in index]).encode(), *map(_encode_program, numbers)]
    body = b"".join(_SIZE.pack(len(part)) + part for part in parts)
    to.write_bytes(lzma.compress(body, format=lzma.FORMAT_XZ, filters=_FILTERS))


def _unique_names(cases: Sequence[Case]) -> Iterator[str]:
    """The names of files; one that was there before gets a number."""
    seen: Counter[tuple[str, str]] = Counter()
    for case in cases:
        name = Path(case.name).name
        seen[case.target, name] += 1
        count = seen[case.target, name]
        yield name if count == 1 else f"{name} {count}"


def _describe_case(case: Case, number: int) -> StoredKernel:
    measured = dict(case.measured)
    name = Path(case.name).name
    return StoredKernel(
        name, case.problem, case.group, case.target, dict(case.config), measured, case.counters, number
    )


class Store:
    """The kernels of a store; programs are decoded one by one."""

    def __init__(self, path: Path = STORE) -> None:
        """Read the store.

        Raises:
            CaseError: there is none, or it is damaged.
        """
        try:
            parts = list(_split_parts(lzma.decompress(path.read_bytes())))
            self.kernels = [StoredKernel(**entry) for entry in json.loads(parts[0])]
        except OSError as error:
            raise CaseError(f"{path} cannot be read: {error.strerror}") from error
        except (lzma.LZMAError, struct.error, ValueError, TypeError, IndexError) as error:
            raise CaseError(f"{path} is damaged: {error}; write it again with --store") from error
        self._programs = parts[1:]

    def program(self, kernel: StoredKernel) -> bytes:
        """The bytes of a kernel's program."""
        return _decode_program(self._programs[kernel.program])

    def unpack_cases(self, folder: Path) -> list[Case]:
        """Write all programs to a folder; return the cases that use them."""
        folder.mkdir(parents=True, exist_ok=True)
        files: dict[int, Path] = {}
        for kernel in self.kernels:
            if kernel.program not in files:
                files[kernel.program] = folder / f"stored-{kernel.program}.program"
                files[kernel.program].write_bytes(self.program(kernel))
        return [
            Case(
                name=one.name,
                problem=one.problem,
                target=one.target,
                measured=one.measured,
                config=one.config,
                group=one.group,
                counters=one.counters,
                program=files[one.program],
            )
            for one in self.kernels
        ]


def _split_parts(body: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(body):
        (size,) = _SIZE.unpack_from(body, at)
        yield body[at + _SIZE.size : at + _SIZE.size + size]
        at += _SIZE.size + size


def _encode_program(data: bytes) -> bytes:
    header, columns = wire.unpack(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    planes = [_encode_column(columns[name], code) for name, code in wire.COLUMNS]
    return _SIZE.pack(len(text)) + text + b"".join(planes)


def _encode_column(column: memoryview, code: str) -> bytes:
    values = np.frombuffer(column, dtype=_TYPES[code])
    changes = np.diff(values.astype(np.int64), prepend=np.int64(0)).astype(values.dtype)
    return changes.view(np.uint8).reshape(-1, values.itemsize).T.tobytes()


def _decode_program(part: bytes) -> bytes:
    """The program as the tracer wrote it.

    Raises:
        IRError: the program has the format of another version.
    """
    (size,) = _SIZE.unpack_from(part)
    header: dict[str, Any] = json.loads(part[_SIZE.size : _SIZE.size + size])
    at, columns = _SIZE.size + size, {}
    lengths = header.pop("lengths")
    if set(lengths) != {name for name, _ in wire.COLUMNS}:
        raise IRError("the stored programs have the format of another version: write them again with --store")
    for name, code in wire.COLUMNS:
        kind = np.dtype(_TYPES[code])
        nbytes = lengths[name] * kind.itemsize
        planes = np.frombuffer(part, dtype=np.uint8, count=nbytes, offset=at).reshape(kind.itemsize, -1)
        changes = np.ascontiguousarray(planes.T).reshape(-1).view(kind)
        columns[name] = np.cumsum(changes.astype(np.int64)).astype(kind).tobytes()
        at += nbytes
    return wire.pack(header, columns)
