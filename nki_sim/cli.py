"""`nki-sim`: the simulator at the command line. Thin: parses, calls, prints, maps errors to exit statuses.

0 correct, or nothing to compare with (`correct` is null); 1 incorrect or a broken rule; 2 usage, or a
reference at fault; 3 the kernel is at fault.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nki_sim import ArraySpec, __version__, checks, counters, explain, numerics, schedule, targets, trace
from nki_sim.arrays import NUMPY, Array
from nki_sim.errors import InputError, KernelError, SimError
from nki_sim.ir import Program
from nki_sim.operators import OPERATORS, UNSUPPORTED

REL_L2 = 2e-5
EXIT_INCORRECT, EXIT_USAGE, EXIT_KERNEL = 1, 2, 3

Report = dict[str, Any]


def parse_argument(text: str) -> ArraySpec | int | float | bool:
    """`4096x512:bfloat16`, `4096x512` (float32), or a number.

    Raises:
        InputError: neither a shape nor a number.
    """
    shape, _, dtype = text.partition(":")
    try:
        return float(text) if "." in text or ("e" in text.lower() and not dtype) else _sizes(shape, dtype)
    except ValueError as error:
        raise InputError(f"--arg {text!r} is neither a shape such as 128x512:float32 nor a number") from error


def _sizes(shape: str, dtype: str) -> ArraySpec | int:
    sizes = tuple(int(size) for size in shape.split("x"))
    if len(sizes) == 1 and not dtype:
        return sizes[0]
    if (dtype or "float32") not in NUMPY or min(sizes) < 1:
        raise ValueError(dtype)
    return ArraySpec(sizes, dtype or "float32")


def random_inputs(program: Program, seed: int) -> list[Array]:
    """Standard normal arrays (small integers for integer types) for the program's inputs."""
    import numpy as np

    rng = np.random.default_rng(seed)
    made: list[Array] = []
    for spec in program.specs(program.inputs):
        dtype = NUMPY[spec.dtype]
        values = rng.integers(0, 8, spec.shape) if dtype.kind in "iu" else rng.standard_normal(spec.shape)
        made.append(values.astype(dtype))
    return made


def load_reference(path: Path) -> Any:
    """The `forward` or `reference` function of a file.

    Raises:
        InputError: the file has neither, or raises.
    """
    namespace: dict[str, Any] = {"__name__": "reference", "__file__": str(path)}
    text = path.read_text()
    with _reference_faults():
        exec(compile(text, str(path), "exec"), namespace)  # noqa: S102  the person's own file
    function = namespace.get("forward") or namespace.get("reference")
    if not callable(function):
        raise InputError(f"{path} defines neither forward nor reference")
    return function


@contextmanager
def _reference_faults() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the person's own file may raise anything
        raise InputError(f"the reference raised {type(error).__name__}: {error}") from error


def _wanted(reference: Any, inputs: list[Array], outputs: list[Array]) -> list[Array]:
    """What the reference computes, one array for each output of the kernel.

    Raises:
        InputError: the reference raises, or its results do not fit the kernel's outputs.
    """
    import numpy as np

    with _reference_faults():
        result = reference(*inputs)
        wanted = [np.asarray(item) for item in (result if isinstance(result, tuple | list) else [result])]
    shapes, expected = [item.shape for item in wanted], [item.shape for item in outputs]
    if shapes != expected:
        raise InputError(f"the reference returns arrays of {shapes}, the kernel of {expected}")
    return wanted


def parse_seeds(text: str) -> list[int]:
    """Comma-separated seeds.

    Raises:
        InputError: something in between is not a number from 0.
    """
    try:
        seeds = [int(item) for item in text.split(",")]
    except ValueError as error:
        raise InputError(f"--seeds {text!r} is not a list such as 0,21,42") from error
    if min(seeds) < 0:
        raise InputError(f"--seeds {text!r}: seeds start at 0")
    return seeds


def relative_l2(found: Array, wanted: Array) -> float:
    """||found - wanted|| / ||wanted|| in float64."""
    import numpy as np

    exact = np.asarray(wanted, dtype=np.float64)
    error = np.asarray(found, dtype=np.float64) - exact
    return float(np.linalg.norm(error) / max(float(np.linalg.norm(exact)), np.finfo(np.float64).tiny))


def _trace(options: argparse.Namespace) -> Program:
    path = Path(options.kernel)
    args = [parse_argument(text) for text in options.arg]
    return trace(path.read_text(), args=args, target=options.target, entry=options.entry, filename=str(path))


def do_trace(options: argparse.Namespace) -> tuple[int, Report]:
    program = _trace(options)
    found = [asdict(item) for item in checks.check(program, targets.load(options.target))]
    report = {
        "kernel": program.kernel,
        "target": program.target,
        "instructions": len(program),
        "tensors": len(program.tensor_sites),
        "bytes": len(program.to_bytes()),
        "checks": found,
    }
    return (EXIT_INCORRECT if found else 0), report


def do_run(options: argparse.Namespace) -> tuple[int, Report]:
    begun = time.perf_counter()
    program = _trace(options)
    traced = time.perf_counter()
    target = targets.load(options.target)
    found = [asdict(item) for item in checks.check(program, target)]
    rel_l2 = {} if found else _compare(program, options)
    passed = not found and all(value < options.tolerance for value in rel_l2.values())
    compared = found or rel_l2
    summary = {} if found else counters.profile(program, schedule.schedule(program, target), target)
    report = {
        "correct": passed if compared else None,
        "rel_l2": rel_l2,
        "target": options.target,
        "checks": found,
        "counters": summary,
        "seconds": {"trace": traced - begun, "run": time.perf_counter() - traced},
        "error": None,
    }
    return (0 if passed else EXIT_INCORRECT), report


def _compare(program: Program, options: argparse.Namespace) -> dict[str, float]:
    """Largest relative L2 error over the outputs, per seed; without a reference nothing is compared."""
    reference = load_reference(Path(options.reference)) if options.reference else None
    errors = {}
    for seed in parse_seeds(options.seeds):
        inputs = random_inputs(program, seed)
        outputs = numerics.run(program, inputs)
        if reference is not None:
            pairs = zip(outputs, _wanted(reference, inputs, outputs), strict=True)
            errors[str(seed)] = max(relative_l2(found, expected) for found, expected in pairs)
    return errors


def do_profile(options: argparse.Namespace) -> tuple[int, Report]:
    program = _trace(options)
    target = targets.load(options.target)
    found = [asdict(item) for item in checks.check(program, target)]
    if found:
        return EXIT_INCORRECT, {"target": options.target, "checks": found}
    timeline = schedule.schedule(program, target)
    prediction = schedule.predict(program, target, timeline=timeline)
    return 0, {
        "target": options.target,
        "predicted": asdict(prediction),
        "explanation": asdict(explain.explain(program, timeline)),
        "counters": counters.profile(program, timeline, target),
    }


def do_ops(options: argparse.Namespace) -> tuple[int, Report]:
    del options
    supported = {
        name: {"engines": list(op.engines), "arguments": [item.name for item in op.arguments], "doc": op.doc}
        for name, op in OPERATORS.items()
    }
    return 0, {"supported": supported, "unsupported": sorted(UNSUPPORTED)}


def do_path(options: argparse.Namespace) -> tuple[int, Report]:
    del options
    return 0, {"path": str(Path(__file__).parent / "shims")}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nki-sim", description="Run, check and profile NKI kernels on a CPU."
    )
    parser.add_argument("--version", action="version", version=f"nki-sim {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True)
    texts = {
        "trace": (do_trace, "trace a kernel on shapes and apply the hardware's rules"),
        "run": (do_run, "trace, check, run on random inputs, compare with a reference"),
        "profile": (do_profile, "predict time and counters, and say what limits the kernel"),
    }
    for verb, (action, text) in texts.items():
        sub = verbs.add_parser(verb, help=text)
        sub.set_defaults(action=action)
        sub.add_argument("kernel", help="a file with one @nki.jit function, or one named kernel")
        sub.add_argument("--arg", action="append", default=[], help="128x512:float32, or a number; once each")
        sub.add_argument("--entry", help="the kernel's name when the file has several")
        sub.add_argument("--target", default="trn2", help=f"one of {', '.join(targets.names())}")
        sub.add_argument("--json", action="store_true", help="print one JSON object")
        if verb == "run":
            sub.add_argument("--reference", help="a file that defines forward(*inputs) or reference(*inputs)")
            sub.add_argument("--seeds", default="0", help="comma-separated, for example 0,21,42")
            sub.add_argument("--tolerance", type=float, default=REL_L2, help="largest relative L2 error")
    for verb, action, text in (
        ("ops", do_ops, "list the instructions that are supported"),
        ("path", do_path, "print the folder to put on PYTHONPATH so that `import nki` works"),
    ):
        sub = verbs.add_parser(verb, help=text)
        sub.set_defaults(action=action)
        sub.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _show(report: Report, *, as_json: bool, indent: str = "") -> None:
    if as_json:
        print(json.dumps(report))
        return
    for name, value in report.items():
        if isinstance(value, dict) and value:
            print(f"{indent}{name}:")
            _show(value, as_json=False, indent=indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], dict | list | tuple):
            print(f"{indent}{name}:")
            for item in value:
                print(f"{indent}  {item}")
        else:
            print(f"{indent}{name}: {value}")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C ends the process; as an exception it would be taken for one of the kernel's."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; the exit status is returned."""
    options = _parser().parse_args(argv)
    status: int
    try:
        with _interruptible():
            status, report = options.action(options)
    except KernelError as error:
        fields = {"code": error.code, "message": error.message, "line": error.line, "hint": error.hint}
        if options.json:
            _show({"correct": False, "error": fields}, as_json=True)
        else:
            print(f"{options.kernel}: {error}", file=sys.stderr)
        return EXIT_KERNEL
    except (SimError, OSError, UnicodeDecodeError) as error:
        print(f"nki-sim: {error}", file=sys.stderr)
        return EXIT_USAGE
    if options.verb == "path" and not options.json:
        print(report["path"])
    else:
        _show(report, as_json=options.json)
    return status


if __name__ == "__main__":
    sys.exit(main())
