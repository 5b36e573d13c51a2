"""Reads the tables of a full profile: when engines are busy, what they wait for, and for which line.

Neuron Explorer writes a profile as Parquet files, one or several for each table. Tables and fields: the
profile schema reference in the Neuron documentation at 7.4.0 (SDK 2.31). Of 12.0.1 (SDK 2.33) only the
beginning was at hand, which names the same tables; public scripts for profiles of 2.32 and later read the
same names. A table or field
that a release does not have leaves out what would be made of it, and `missing_fields` names it with the
version of the schema. DuckDB reads the files; it is an optional dependency (`profiles`). Times are in
nanoseconds in the tables, and in milliseconds here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nki_sim.timing.activity import busy_shares, merge_intervals
from targets.nki.hosts.profile_summary import ENGINES, SummaryError
from targets.nki.hostside.neuron import TABLES

if TYPE_CHECKING:
    import duckdb

INSTALL_READER = "pip install 'nki-kernel-agent[profiles]'"

NEWEST_MAJOR = 12
"""Of the schema whose names are read here; a larger one may have renamed tables and fields."""

PARTS = 160
_MAX_LINES = 16
_MAX_QUEUES = 16
_MAX_TENSORS = 64
_WANTED = {
    "ActiveTime": ("start_ts", "end_ts", "engine"),
    "DmaPacketAggregated": (
        "start_ts", "end_ts", "duration_ns", "queue_name", "variable", "source", "transfer_bytes",
    ),
    "Flow": ("in_id", "in_table", "out_id", "out_table", "gap_time"),
    "Instruction": (
        "id", "engine", "opcode", "duration_ns", "evt_wait_time_ns", "spill_save_bytes", "spill_reload_bytes",
    ),
    "TensorInfo": ("variable_name", "size"),
}  # fmt: skip
"""The fields that are read, beside those of which any of several will do."""

_INPUT = "%INPUT%"
"""Where a DMA that loads an input reads from, as the tables call it: `[[INPUT]]`."""

_FILE = re.compile(rf"({'|'.join(TABLES)})(_\d+)?\.parquet")


def describe_unread(reason: str) -> ProfileTables:
    """What a profile says of tables that were not read: why."""
    return ProfileTables({"table_notes": [f"the full profile was not read: {reason}"]})


def can_read_tables() -> bool:
    """Return whether DuckDB is installed."""
    return find_spec("duckdb") is not None


def is_table_file(name: str) -> bool:
    """Return whether a file of a profile is one of the tables that are read here."""
    return _FILE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class LoadedTensor:
    """A tensor of the kernel: its bytes, and how many times over they were loaded into SBUF."""

    name: str
    nbytes: int
    repeats: float


@dataclass(frozen=True, slots=True)
class ProfileTables:
    """What the tables say: `fields` for the profile of people and proposers, `tensors` as loaded."""

    fields: Mapping[str, Any]
    tensors: Sequence[LoadedTensor] = ()


def read_tables(folder: Path, kernel_file: str) -> ProfileTables:
    """Read the tables in a folder; lines are those of `kernel_file`.

    Raises:
        SummaryError: DuckDB is not installed, or cannot read them.
    """
    if not can_read_tables():
        raise SummaryError(f"full profiles are read with DuckDB: {INSTALL_READER}")
    import duckdb

    try:
        with duckdb.connect(config={"threads": 2, "memory_limit": "2GB"}) as connection:
            reader = _TableReader(connection, folder)
            fields = {
                "timeline": reader.read_timeline(),
                "waits_ms": reader.read_waits(),
                "busy_lines": reader.read_lines(kernel_file),
                "spilled": reader.read_spills(kernel_file),
                "dma_queues": reader.read_queues(),
                "missing_fields": reader.describe_missing(),
                "table_notes": reader.note_newer_schema(),
            }
            tensors = reader.read_tensors()
    except duckdb.Error as error:
        raise SummaryError(f"the profile's tables cannot be read: {str(error)[:500]}") from error
    return ProfileTables({name: value for name, value in fields.items() if value}, tensors)


class _TableReader:
    """Queries the tables that are there; a query of a field that is not gives nothing."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
        self._connection = connection
        self._columns: dict[str, set[str]] = {}
        for table in TABLES:
            files = [str(path) for path in sorted(folder.iterdir()) if _table_of(path.name) == table]
            if files:
                connection.read_parquet(files, union_by_name=True).create_view(table)
                told = connection.execute(f"DESCRIBE {table}").fetchall()
                self._columns[table] = {row[0] for row in told}

    def _has(self, table: str, *columns: str) -> bool:
        return table in self._columns and self._columns[table].issuperset(columns)

    def describe_missing(self) -> dict[str, Any]:
        """The fields that this release's tables do not have, and the version of its schema if it is known."""
        missing = [
            f"{table}.{column}" if self._has(table) else table
            for table, columns in _WANTED.items()
            for column in columns
            if not self._has(table, column)
        ]
        if not missing or not self._columns:
            return {}
        return {"fields": list(dict.fromkeys(missing)), "schema_version": self._schema_version()}

    def note_newer_schema(self) -> list[str]:
        """A note if the tables have a schema that may mean other things by the same names."""
        version = self._schema_version()
        major = version.partition(".")[0]
        if not major.isdecimal() or int(major) <= NEWEST_MAJOR:
            return []
        return [f"the profile has schema {version}, newer than {NEWEST_MAJOR}, whose names are read here"]

    def _schema_version(self) -> str:
        """The version of the tables' schema, `MAJOR.MINOR.PATCH`, or `unknown`."""
        known = self._has("Metadata", "profile_schema_version")
        rows = self._query("SELECT profile_schema_version FROM Metadata LIMIT 1") if known else []
        return str(rows[0][0])[:32] if rows and rows[0][0] is not None else "unknown"

    def _query(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(text, values).fetchall()

    def read_timeline(self) -> dict[str, Any]:
        """When each engine is busy, as shares of equal parts of the run."""
        found = {}
        if self._has("ActiveTime", "start_ts", "end_ts", "engine"):
            for engine in ENGINES:
                query = "SELECT start_ts, end_ts FROM ActiveTime WHERE lower(engine) = ?"
                found[engine] = self._read_intervals(query, engine)
        if self._has("DmaPacketAggregated", "start_ts", "end_ts"):
            found["dma"] = self._read_intervals("SELECT start_ts, end_ts FROM DmaPacketAggregated")
        found = {name: intervals for name, intervals in found.items() if len(intervals[0])}
        if not found:
            return {}
        begin = min(start.min() for start, _ in found.values())
        span = max(end.max() for _, end in found.values()) - begin
        if span <= 0:
            return {}
        shares = {
            name: busy_shares(*merge_intervals(start - begin, end - begin), span, PARTS)
            for name, (start, end) in found.items()
        }
        return {"span_ms": span / 1e6, "busy_percent": shares}

    def _read_intervals(self, query: str, *values: str) -> tuple[np.ndarray, np.ndarray]:
        rows = np.array(self._query(query, *values), dtype=np.float64).reshape(-1, 2)
        return rows[:, 0], rows[:, 1]

    def read_waits(self) -> dict[str, dict[str, float]]:
        """How long each engine waits for semaphores, and of whom, as far as dependences are told.

        An instruction waits for that of its predecessors which ends last: the one with the smallest gap.
        """
        if not self._has("Instruction", "engine", "evt_wait_time_ns"):
            return {}
        rows = self._query(
            f"SELECT lower(engine), {self._awaited()} AS awaited, sum(evt_wait_time_ns) / 1e6 AS ms "  # noqa: S608
            "FROM Instruction GROUP BY 1, 2 HAVING sum(evt_wait_time_ns) > 0 ORDER BY ms DESC, 1, 2"
        )
        found: dict[str, dict[str, float]] = {}
        for engine, awaited, ms in rows:
            if engine in ENGINES:
                known = f"semaphores {awaited}" if awaited in {*ENGINES, "dma"} else "semaphores"
                waits = found.setdefault(engine, {})
                waits[known] = waits.get(known, 0.0) + float(ms)
        return found

    def _awaited(self) -> str:
        """A query for the engine of an instruction's last predecessor, `dma`, or NULL."""
        if not self._has("Flow", *_WANTED["Flow"]) or not self._has("Instruction", "id"):
            return "NULL"
        return (
            "(SELECT arg_min("
            "CASE WHEN lower(in_table) LIKE 'dma%' THEN 'dma' ELSE lower(earlier.engine) END, gap_time) "
            "FROM Flow LEFT JOIN Instruction AS earlier "
            "ON lower(in_table) = 'instruction' AND earlier.id = in_id "
            "WHERE lower(out_table) = 'instruction' AND out_id = Instruction.id)"
        )

    def read_queues(self) -> list[dict[str, Any]]:
        """The DMA queues that are busy longest: how long their transfers take, and what they move."""
        if not self._has("DmaPacketAggregated", "queue_name", "duration_ns", "transfer_bytes"):
            return []
        rows = self._query(
            "SELECT queue_name, sum(duration_ns) / 1e6 AS ms, sum(transfer_bytes) "  # noqa: S608
            "FROM DmaPacketAggregated WHERE queue_name IS NOT NULL AND duration_ns > 0 "
            f"GROUP BY 1 ORDER BY ms DESC, 1 LIMIT {_MAX_QUEUES}"
        )
        return [
            {"queue": str(name)[:64], "ms": float(ms), "bytes": int(moved or 0)} for name, ms, moved in rows
        ]

    def read_spills(self, kernel_file: str) -> list[dict[str, Any]]:
        """The lines of the kernel that save tiles to HBM or reload them; line 0: no line is known."""
        if not self._has("Instruction", "spill_save_bytes", "spill_reload_bytes"):
            return []
        place = self._source_place()
        line = f"CAST(nullif(regexp_extract({place}, ?, 1), '') AS INTEGER)" if place else "NULL"
        rows = self._query(
            f"SELECT coalesce({line}, 0) AS line, sum(coalesce(spill_save_bytes, 0)) AS saved, "  # noqa: S608
            "sum(coalesce(spill_reload_bytes, 0)) AS reloaded FROM Instruction "
            f"GROUP BY 1 HAVING saved + reloaded > 0 ORDER BY saved + reloaded DESC, 1 LIMIT {_MAX_LINES}",
            *([_line_pattern(kernel_file)] if place else []),
        )
        return [
            {"line": int(line), "saved_bytes": int(saved), "reloaded_bytes": int(reloaded)}
            for line, saved, reloaded in rows
        ]

    def _source_place(self) -> str:
        """An expression for where an instruction stands in a source; empty if no field says so."""
        places = ("nki_source_location", "bir_debug_info_source_location")
        there = [f"CAST({name} AS VARCHAR)" for name in places if self._has("Instruction", name)]
        return f"coalesce({', '.join(there)})" if there else ""

    def read_lines(self, kernel_file: str) -> list[dict[str, Any]]:
        """The lines of the kernel that keep engines busy longest; one instruction counts for one line."""
        place = self._source_place()
        if not place or not self._has("Instruction", "engine", "duration_ns", "opcode"):
            return []
        rows = self._query(
            f"SELECT CAST(regexp_extract({place}, ?, 1) AS INTEGER) AS line, lower(engine), "  # noqa: S608
            "sum(duration_ns) / 1e6 AS ms, mode(opcode) FROM Instruction "
            f"WHERE regexp_matches({place}, ?) GROUP BY 1, 2 ORDER BY ms DESC, line LIMIT {_MAX_LINES}",
            *[_line_pattern(kernel_file)] * 2,
        )
        return [
            {"line": line, "engine": str(engine)[:32], "ms": float(ms), "op": str(op)[:64]}
            for line, engine, ms, op in rows
        ]

    def read_tensors(self) -> tuple[LoadedTensor, ...]:
        """The tensors that were loaded into SBUF, as the tensors' table says, else as DMA moved them.

        For kernels of NKI the table's own factor is empty (as AWS's profile skill says of 2.30).
        """
        if not self._has("TensorInfo", "variable_name", "size"):
            return ()
        rows = self._read_repeats() or self._read_moved_inputs()
        return tuple(LoadedTensor(str(name)[:64], int(size), float(times)) for name, size, times in rows)

    def _read_repeats(self) -> list[tuple[Any, ...]]:
        if not self._has("TensorInfo", "load_to_sbuf_repeat_factor"):
            return []
        return self._query(
            "SELECT variable_name, size, load_to_sbuf_repeat_factor FROM TensorInfo "  # noqa: S608
            "WHERE load_to_sbuf_repeat_factor > 0 AND size > 0 "
            f"ORDER BY size * load_to_sbuf_repeat_factor DESC LIMIT {_MAX_TENSORS}"
        )

    def _read_moved_inputs(self) -> list[tuple[Any, ...]]:
        if not self._has("DmaPacketAggregated", "variable", "source", "transfer_bytes"):
            return []
        return self._query(
            "SELECT variable, size, moved / size FROM "  # noqa: S608
            "(SELECT variable, sum(transfer_bytes) AS moved FROM DmaPacketAggregated "
            "WHERE source LIKE ? GROUP BY variable) JOIN "
            "(SELECT variable_name, max(size) AS size FROM TensorInfo WHERE size > 0 GROUP BY variable_name) "
            f"ON variable = variable_name WHERE moved > 0 ORDER BY moved DESC LIMIT {_MAX_TENSORS}",
            _INPUT,
        )


def _line_pattern(kernel_file: str) -> str:
    return rf"\b{re.escape(kernel_file)}:(\d{{1,6}})"


def _table_of(name: str) -> str:
    found = _FILE.fullmatch(name)
    return found[1] if found else ""
