"""Full profiles: tables in Parquet, by the documented schema, made into what people and proposers read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from targets.nki.hosts import profile_tables
from targets.nki.hosts.profile_summary import SummaryError

duckdb = pytest.importorskip("duckdb")

# One row each: (engine, start, end) in ns; DMA is busy from 0 to 1000, the tensor engine in the second half.
ACTIVE = "('Tensor', 500, 800), ('tensor', 800, 1000), ('vector', 900, 1000), ('sync', 0, 1000)"
PACKETS = (
    "(0, 400, 400, 'qSyncIO0', 'x', '[[INPUT]]', 1000)",
    """
    (300, 1000, 700, 'qScalarSpillReload0-Q1-E64', NULL, '[[VIRTUAL]]', 64),
    (900, 1000, 100, 'qSyncIO0', 'out', '[[SB]]', 500)
    """,
)
INSTRUCTIONS = """
    (1, 'tensor', 'MATMUL', 300, 40, '[kernel.py:12, other.py:3]', NULL, NULL, NULL),
    (2, 'tensor', 'MATMUL', 100, 0, '[kernel.py:12]', NULL, 0, 0),
    (3, 'tensor', 'LDWEIGHTS', 50, 10, NULL, 'file:/tmp/kernel.py:12', 0, 256),
    (4, 'vector', 'TENSOR_TENSOR', 90, 700, 'kernel.py:20', 'kernel.py:1', 512, 0),
    (5, 'vector', 'TENSOR_TENSOR', 10, NULL, 'library.py:20', NULL, 128, 0),
    (6, 'sync', 'EVENT_SEMAPHORE', 10, 5000, NULL, NULL, 0, 0)
"""
# Instruction 4 follows 2 and, later, 1; 1 follows a DMA; nothing is known of 3.
FLOWS = """
    (2, 'instruction', 4, 'instruction', 900), (1, 'instruction', 4, 'instruction', 5),
    (8, 'dma_block', 1, 'instruction', 7), (4, 'instruction', 9, 'dma_block', 1)
"""
TENSORS = (
    "('x', 'IN', 1000, 1.0), ('w', 'WEIGHT', 4000, 4.0), ('out', 'OUT', 1000, 0.0), (NULL, 'IN', 0, NULL)"
)


def write_table(folder: Path, name: str, columns: str, rows: str) -> None:
    duckdb.sql(f"COPY (SELECT * FROM (VALUES {rows}) AS t({columns})) TO '{folder / name}' (FORMAT parquet)")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "tables"
    place.mkdir()
    write_table(place, "ActiveTime.parquet", "engine, start_ts, end_ts", ACTIVE)
    for number, row in enumerate(PACKETS):
        columns = "start_ts, end_ts, duration_ns, queue_name, variable, source, transfer_bytes"
        write_table(place, f"DmaPacketAggregated_{number}.parquet", columns, row)
    columns = (
        "id, engine, opcode, duration_ns, evt_wait_time_ns, nki_source_location, "
        "bir_debug_info_source_location, spill_save_bytes, spill_reload_bytes"
    )
    write_table(place, "Instruction.parquet", columns, INSTRUCTIONS)
    write_table(place, "Flow.parquet", "in_id, in_table, out_id, out_table, gap_time", FLOWS)
    columns = "variable_name, type, size, load_to_sbuf_repeat_factor"
    write_table(place, "TensorInfo.parquet", columns, TENSORS)
    write_table(place, "Metadata.parquet", "profile_schema_version", "('7.4.0')")
    (place / "Summary.parquet").write_bytes(b"not read")
    return place


def test_engines_waits_lines_and_tensors(folder):
    found = profile_tables.read_tables(folder, "kernel.py")
    timeline = found.fields["timeline"]
    assert timeline["span_ms"] == pytest.approx(1e-3)
    busy = timeline["busy_percent"]
    assert busy.keys() == {"tensor", "vector", "dma"}
    assert all(len(parts) == profile_tables.PARTS for parts in busy.values())
    assert set(busy["dma"]) == {100}
    half = profile_tables.PARTS // 2
    assert (set(busy["tensor"][:half]), set(busy["tensor"][half:])) == ({0}, {100})
    assert sum(busy["vector"]) == pytest.approx(100 * profile_tables.PARTS / 10)
    assert found.fields["waits_ms"] == {
        "vector": {"semaphores tensor": pytest.approx(7e-4)},
        "tensor": {"semaphores dma": pytest.approx(4e-5), "semaphores": pytest.approx(1e-5)},
    }
    assert found.fields["dma_queues"] == [
        {"queue": "qScalarSpillReload0-Q1-E64", "ms": pytest.approx(7e-4), "bytes": 64},
        {"queue": "qSyncIO0", "ms": pytest.approx(5e-4), "bytes": 1500},
    ]
    assert found.fields["spilled"] == [
        {"line": 20, "saved_bytes": 512, "reloaded_bytes": 0},
        {"line": 12, "saved_bytes": 0, "reloaded_bytes": 256},
        {"line": 0, "saved_bytes": 128, "reloaded_bytes": 0},
    ]
    assert "missing_fields" not in found.fields
    assert [(one["line"], one["engine"], one["op"]) for one in found.fields["busy_lines"]] == [
        (12, "tensor", "MATMUL"),
        (20, "vector", "TENSOR_TENSOR"),
    ]
    assert found.fields["busy_lines"][0]["ms"] == pytest.approx(4.5e-4)
    assert [(one.name, one.nbytes, one.repeats) for one in found.tensors] == [
        ("w", 4000, 4.0),
        ("x", 1000, 1.0),
    ]


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("ActiveTime.parquet", None),
        ("Instruction.parquet", "waits_ms"),
        ("Instruction.parquet", "spilled"),
        ("TensorInfo.parquet", None),
        ("Flow.parquet", None),
        ("DmaPacketAggregated_0.parquet", None),
    ],
)
def test_a_table_that_a_release_lacks_leaves_out_what_it_says(folder, name, field):
    (folder / name).unlink()
    found = profile_tables.read_tables(folder, "kernel.py")
    assert field not in found.fields
    assert "timeline" in found.fields  # of DMA at least


def test_without_dependences_nobody_is_named_whom_engines_wait_for(folder):
    (folder / "Flow.parquet").unlink()
    waits = profile_tables.read_tables(folder, "kernel.py").fields["waits_ms"]
    assert {cause for causes in waits.values() for cause in causes} == {"semaphores"}


def test_a_column_that_a_release_lacks_leaves_out_what_it_says(folder):
    """And the profile names what was missing, with the version of its schema."""
    write_table(folder, "Instruction.parquet", "engine, opcode", "('tensor', 'MATMUL')")
    write_table(folder, "TensorInfo.parquet", "variable_name", "('x')")
    write_table(folder, "Metadata.parquet", "profile_schema_version", "('12.0.1')")
    found = profile_tables.read_tables(folder, "kernel.py")
    assert found.fields.keys() == {"timeline", "dma_queues", "missing_fields"}
    assert found.tensors == ()
    missing = found.fields["missing_fields"]
    assert missing["schema_version"] == "12.0.1"
    assert {"Instruction.duration_ns", "TensorInfo.size"} <= set(missing["fields"])
    assert "ActiveTime" not in " ".join(missing["fields"])


def test_reloads_are_counted_from_dma_where_the_tensors_table_is_empty(folder):
    """As it is for kernels of NKI: the bytes that DMA moved from an input, over the input's size."""
    columns = "variable_name, type, size, load_to_sbuf_repeat_factor"
    rows = "('x', 'IN', 1000, NULL), ('w', 'IN', 4000, NULL), ('out', 'OUT', 1000, NULL)"
    write_table(folder, "TensorInfo.parquet", columns, rows)
    (folder / "DmaPacketAggregated_0.parquet").unlink()
    columns = "start_ts, end_ts, duration_ns, queue_name, variable, source, transfer_bytes"
    rows = ", ".join(
        f"(0, 9, 9, 'q', {moved})"
        for moved in (
            "'x', '[[INPUT]]', 600", "'x', '[[INPUT]]', 400", "'w', '[[INPUT]]', 10000",
            "'out', '[[SB]]', 5000", "'spilled', '[[VIRTUAL]]', 700", "NULL, NULL, NULL",
        )
    )  # fmt: skip
    write_table(folder, "DmaPacketAggregated_1.parquet", columns, rows)
    found = profile_tables.read_tables(folder, "kernel.py")
    assert [(one.name, one.nbytes, one.repeats) for one in found.tensors] == [
        ("w", 4000, 2.5),
        ("x", 1000, 1.0),
    ]
    assert "missing_fields" not in found.fields


@pytest.mark.parametrize("version", ["(NULL)", "('7.4.0')"])
def test_a_schema_without_a_version_is_said_to_be_unknown(folder, version):
    (folder / "ActiveTime.parquet").unlink()
    write_table(folder, "Metadata.parquet", "profile_schema_version", version)
    missing = profile_tables.read_tables(folder, "kernel.py").fields["missing_fields"]
    assert missing["schema_version"] == ("unknown" if "NULL" in version else "7.4.0")
    assert "ActiveTime" in missing["fields"]


@pytest.mark.parametrize(("version", "newer"), [("12.0.1", False), ("12.9.0", False), ("13.0.0", True)])
def test_a_newer_schema_gets_a_note(folder, version, newer):
    """A new major version may have renamed what is read, so what is read may be something else."""
    write_table(folder, "Metadata.parquet", "profile_schema_version", f"('{version}')")
    found = profile_tables.read_tables(folder, "kernel.py").fields
    assert ("table_notes" in found) == newer
    assert "timeline" in found
    if newer:
        assert version in found["table_notes"][0]


@pytest.mark.parametrize("damage", [b"", b"PAR1" + bytes(100) + b"PAR1", b"hello"])
def test_a_damaged_table_is_an_error_that_says_so(folder, damage):
    (folder / "Instruction.parquet").write_bytes(damage)
    with pytest.raises(SummaryError, match="cannot be read"):
        profile_tables.read_tables(folder, "kernel.py")


def test_without_tables_there_is_nothing(tmp_path):
    assert profile_tables.read_tables(tmp_path, "kernel.py").fields == {}


def test_what_is_made_is_json(folder):
    json.dumps(dict(profile_tables.read_tables(folder, "kernel.py").fields))


def test_only_its_own_files_are_tables():
    assert profile_tables.is_table_file("Instruction_12.parquet")
    assert not profile_tables.is_table_file("../Instruction.parquet")
    assert not profile_tables.is_table_file("Instruction.parquet.sh")
