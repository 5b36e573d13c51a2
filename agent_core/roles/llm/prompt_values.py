"""Prompt values that several roles share: the problem, a kernel, a plan, a latency, and chosen sections."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from agent_core.prompting import FileKind, PromptSet
from agent_core.roles import ReadBlob
from agent_core.roles.llm.fitting import PromptItems
from agent_core.roles.llm.quoting import clean_text, fence_text, single_line
from seeds import ArgumentSpec, build_problem
from state.model import Benchmark, Candidate, Digest, Plan, ProblemRef

_WORD = re.compile(r"[A-Za-z_]\w*")
MOST_SECTIONS = 6
"""The most sections of a kind that are chosen."""
REFERENCE = "reference.py"


def source_of(candidate: Candidate, read: ReadBlob) -> str:
    """Return a candidate's source as models see it; their edits apply to this text."""
    return clean_text(read(candidate.source).decode(errors="replace"))


def describe_problem(ref: ProblemRef, size: str, read: ReadBlob) -> dict[str, str]:
    """Return the values `problem` and `reference`."""
    files = {path: read(digest) for path, digest in ref.files.items()}
    spec = build_problem(files).spec
    dims = spec.dims(size)
    found = [
        f"- name: {spec.name}",
        f"- formula: {single_line(spec.formula)}",
        f"- dimensions: {', '.join(f'{name} = {value}' for name, value in dims.items())}",
        *(f"- input {_describe_array(item, dims, item.resolve_kernel_shape(dims))}" for item in spec.inputs),
        *(f"- number {item.name}: {item.value}" for item in spec.scalars),
        *(f"- output {_describe_array(item, dims, item.resolve_shape(dims))}" for item in spec.outputs),
        f"- tolerance: relative L2 error of each output below {spec.rel_l2:g}",
        *(f"- holds of every kernel: {single_line(item.name)}" for item in spec.relations),
    ]
    work = spec.minimal_work(size)
    found.append(
        f"- least work: {work.read_bytes} bytes read, {work.write_bytes} written, {work.matmul_flops} FLOPs"
        f" of products in {work.matmul_dtype}, {work.other_flops} others"
    )
    if work.mx:
        found.append("- MX types: allowed; products may round operands to 8 or 4 bits with shared scales")
    return {"problem": "\n".join(found), "reference": fence_text(files[REFERENCE].decode(), "python")}


def _describe_array(item: ArgumentSpec, dims: Mapping[str, int], shape: tuple[int, ...]) -> str:
    return f"{item.name}: {list(shape)} {item.dtype}"


def format_latency(found: Benchmark) -> str:
    """Return a latency with its interval; a predicted one is called so."""
    how = "predicted" if found.predicted else f"measured, {found.samples} samples"
    return f"{found.latency_ms:.6g} ms ({how}, {found.lo_ms:.6g} to {found.hi_ms:.6g})"


def plan_details(plan: Plan) -> dict[str, Any]:
    """Return the details of a model's plan beyond the common fields; empty for other plans."""
    return plan.detail if isinstance(plan.detail, dict) else {}


def describe_plan(made: Plan) -> str:
    """Return a plan as a list, one line for each part."""
    more = plan_details(made)
    steps = more.get("steps", [])
    found = [
        f"- technique: {single_line(made.technique)}",
        f"- site: {single_line(made.site)}",
        f"- title: {single_line(made.title)}",
        *(f"- step {number}: {single_line(str(step), 2000)}" for number, step in enumerate(steps, start=1)),
        *(f"- {name}: {single_line(str(more[name]))}" for name in ("bottleneck", "risk") if more.get(name)),
    ]
    return "\n".join(found)


def describe_prediction(made: Plan) -> str:
    """Return a plan's prediction as text."""
    said = made.prediction
    way = {-1: "falls", 0: "stays", 1: "rises"}[said.direction]
    counter = f", {single_line(said.counter)} {way}" if said.counter else ""
    reason = f"; {single_line(said.reason)}" if said.reason else ""
    return f"{said.speedup:.3f} times as fast{counter}{reason}"


def describe_functions(names: Iterable[str]) -> str:
    """Return the demand that a kernel defines these functions; empty if no names are known."""
    wanted = ", ".join(f"`{name}`" for name in sorted(names))
    return f"The kernel must define {wanted}." if wanted else ""


def words_of(*texts: str) -> frozenset[str]:
    """Return the words of texts, by which sections and techniques are chosen."""
    return frozenset(word for text in texts for word in _WORD.findall(text))


def select_sections(prompts: PromptSet, target: str, *texts: str) -> dict[str, PromptItems]:
    """Return the values `interface` and `examples`: the sections whose terms occur as words in the texts.

    Sections with most terms among the words come first.
    """
    words = words_of(*texts)
    return {
        "interface": _choose_sections(
            prompts, FileKind.API, target, words=words, none="(what the guide has is all)"
        ),
        "examples": _choose_sections(prompts, FileKind.EXAMPLE, target, words=words, none="(none)"),
    }


def _choose_sections(
    prompts: PromptSet, kind: FileKind, target: str, *, words: frozenset[str], none: str
) -> PromptItems:
    rated = [(len(words.intersection(one.item.terms)), one) for one in prompts.list_sections(kind, target)]
    fitting = sorted((pair for pair in rated if pair[0]), key=lambda pair: -pair[0])[:MOST_SECTIONS]
    pieces = tuple(f"## {one.title}\n\n{one.text}\n" for _, one in fitting)
    return PromptItems(pieces, none)


def profile_of(candidate: Candidate, read: ReadBlob) -> Mapping[str, Any]:
    """Return a candidate's profile as its evaluator wrote it; empty if there is none."""
    return {} if candidate.profile is None else profile_at(candidate.profile, read)


def profile_at(digest: Digest, read: ReadBlob) -> Mapping[str, Any]:
    """Return a profile by the digest of its blob."""
    found = json.loads(read(digest))
    return found if isinstance(found, dict) else {}
