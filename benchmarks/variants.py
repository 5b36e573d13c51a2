"""What each variant of a workload's graph comes to, by prediction: its default, and the best of some samples.

    .venv/bin/python benchmarks/variants.py                      # some minutes on 2 free cores
    .venv/bin/python benchmarks/variants.py --workloads swiglu --samples 0 --json

The figures say what a rewrite of the graph is worth before a knob is tuned, and how far a few points drawn by
chance lie from that; the search goes further. Every latency is predicted; no hardware is timed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT)]  # as with `python -m`: the project's root, so that both spellings work

from benchmarks.surface.programs import predict_point  # noqa: E402
from benchmarks.surface.workloads import attention, matmul, rmsnorm_matmul  # noqa: E402
from targets.nki.knobs import ops  # noqa: E402 - the path is set above
from targets.nki.knobs.errors import KnobError  # noqa: E402
from targets.nki.knobs.narrowing import default_ir  # noqa: E402
from targets.nki.knobs.sampling import sample_ir  # noqa: E402
from targets.nki.knobs.tracing import Specs, trace_workload  # noqa: E402
from targets.nki.knobs.variants import IDENTITY, GraphVariant, make_variants  # noqa: E402


def softmax_matmul(x: Any, v: Any) -> Any:
    return ops.NKIMatmul()(stationary=ops.NKITranspose()(data=ops.NKISoftmax()(data=x)), moving=v)


def transpose_matmul(a: Any, b: Any) -> Any:
    return ops.NKITranspose()(data=ops.NKIMatmul()(stationary=a, moving=b))


def swiglu(x: Any, w_up: Any, w_down: Any, w_gate: Any) -> Any:
    """As written on paper: rows first, so that the hidden rows are transposed."""
    flipped = ops.NKITranspose()(data=x)
    gate = ops.NKIActivation(op="silu")(data=ops.NKIMatmul()(stationary=flipped, moving=w_gate))
    up = ops.NKIMatmul()(stationary=flipped, moving=w_up)
    hidden = ops.NKITensorTensor(op="multiply")(data1=gate, data2=up)
    return ops.NKIMatmul()(stationary=ops.NKITranspose()(data=hidden), moving=w_down)


def _of(dtype: str, **shapes: tuple[int, ...]) -> Specs:
    return {name: (shape, dtype) for name, shape in shapes.items()}


_SWIGLU = {"x": (512, 512), "w_up": (512, 1024), "w_down": (1024, 512), "w_gate": (512, 1024)}
_ATTENTION = {"q": (512, 128), "k": (1024, 128), "v": (1024, 128)}

WORKLOADS: Mapping[str, tuple[Callable[..., Any], Specs]] = {
    "matmul": (matmul, _of("bfloat16", lhs=(512, 1024), rhs=(1024, 1024))),
    "matmul of 32 rows": (matmul, _of("float32", lhs=(32, 1024), rhs=(1024, 1024))),
    "transpose_matmul": (transpose_matmul, _of("bfloat16", a=(512, 1024), b=(512, 512))),
    "rmsnorm_matmul": (rmsnorm_matmul, _of("bfloat16", x=(512, 1024), w=(1024, 1024))),
    "softmax_matmul": (softmax_matmul, _of("bfloat16", x=(512, 2048), v=(2048, 128))),
    "swiglu": (swiglu, _of("bfloat16", **_SWIGLU)),
    "swiglu_float32": (swiglu, _of("float32", **_SWIGLU)),
    "attention": (attention, _of("bfloat16", **_ATTENTION)),
    "attention_float32": (attention, _of("float32", **_ATTENTION)),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A variant of a workload: predicted milliseconds of its default and of the best point looked at."""

    workload: str
    variant: str
    default_ms: float | None
    best_ms: float | None

    @property
    def text(self) -> str:
        """A line of the table."""
        return f"| {self.workload} | {self.variant} | {_us(self.default_ms)} | {_us(self.best_ms)} |"


def _us(latency_ms: float | None) -> str:
    return "does not fit" if latency_ms is None else f"{latency_ms * 1000:.1f}"


def rows(name: str, samples: int, seed: int, target: str) -> Iterator[Row]:
    """A row for each variant of a workload, itself first."""
    function, specs = WORKLOADS[name]
    for variant in make_variants(trace_workload(function, specs, target=target)):
        yield _row(name, variant, samples, seed)


def _row(name: str, variant: GraphVariant, samples: int, seed: int) -> Row:
    try:
        start = default_ir(variant.graph)
    except KnobError:
        return Row(name, variant.name, None, None)
    rng = Random(seed)
    found = [predict_point(ir)[0] for ir in (start, *(sample_ir(start, rng) for _ in range(samples)))]
    return Row(name, variant.name, found[0], min(found))


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row for each variant of each workload; with `--json` as one object at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="names, with commas between")
    parser.add_argument("--samples", type=int, default=8, help="points drawn for each besides its default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", default="trn2")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    names = options.workloads.split(",")
    if unknown := [name for name in names if name not in WORKLOADS]:
        parser.error(f"{unknown[0]!r} is no workload; there are {', '.join(WORKLOADS)}")
    told = []
    if not options.json:
        print(f"| workload | variant | default, us predicted | best of {options.samples + 1} |")
        print("|---|---|---|---|")
    for row in (item for name in names for item in rows(name, options.samples, options.seed, options.target)):
        told.append({**asdict(row), "is_identity": row.variant == IDENTITY})
        if not options.json:
            print(row.text, flush=True)
    if options.json:
        print(json.dumps({"predicted": True, "samples": options.samples, "rows": told}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
