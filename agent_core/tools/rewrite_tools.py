"""Tools that edit a kernel by the target's rewrite engine: list_rewrites, apply_rewrite."""

from __future__ import annotations

from difflib import get_close_matches

from pydantic import Field

from agent_core.roles import RoleError
from agent_core.tools.answers import ToolAnswer, ToolFault, ToolOutcome
from agent_core.tools.canonical_form import RAISE, WHOLE_KERNEL, find_canonical_form
from agent_core.tools.rewriting import AppliedRewrite, OfferedRewrite, OfferedRewrites, Rewriter
from agent_core.tools.workbench import SourceArguments, Workbench, resolve_source
from state.model import CanonicalKernel

_MOST_SHOWN = 10
_MOST_WITH_MORE = 60
_ADVICE = {
    "unreadable_kernel": "The engine reads plain loops and literal slices; edit the source yourself instead.",
    "does_not_apply": "`list_rewrites` says what applies to this version.",
    "unknown_technique": "`list_rewrites` says what applies to this version.",
}


class ListRewritesArguments(SourceArguments):
    """Arguments of `list_rewrites`."""

    site: str = Field(default="", description="only rewrites whose id or title has this word; empty: all")


class ListRewritesAnswer(ToolAnswer):
    """The rewrites that apply to a version, the most promising first."""

    version: str
    rewrites: tuple[OfferedRewrite, ...]
    left: int = 0
    refusals: tuple[str, ...] = ()

    def render(self) -> str:
        """Return one line for each rewrite: its id, its parameters, what it does."""
        rows = [_render_rewrite(one) for one in self.rewrites]
        rows += [f"({self.left} more; `more: true`, or a `site`, shows them)"] if self.left else []
        rows += [f"does not apply: {reason}" for reason in self.refusals]
        return "\n".join([f"rewrites of {self.version}, the most promising first:", *rows])


def _render_rewrite(one: OfferedRewrite) -> str:
    params = ", ".join(f"{name}={value}" for name, value in one.params.items())
    return f"- {one.id}{f' with {params}' if params else ''}: {one.title}"


async def list_rewrites(bench: Workbench, said: ListRewritesArguments) -> ToolOutcome:
    """List the safe rewrites that apply to a kernel."""
    version, source = resolve_source(bench, said.source, said.edits)
    found = await _offered(bench, source)
    word = said.site.strip().lower()
    kept = [one for one in found.rewrites if word in f"{one.id} {one.title}".lower()]
    if not kept:
        why = "; ".join(found.refusals[:3]) or "no rewrite has a site in it"
        raise ToolFault("no_rewrites", f"no rewrite of {version} fits: {why}", "Edit the source yourself.")
    shown = kept[: _MOST_WITH_MORE if said.more else _MOST_SHOWN]
    answer = ListRewritesAnswer(
        version=version,
        rewrites=tuple(shown),
        left=len(kept) - len(shown),
        refusals=found.refusals if said.more else (),
        next=f'`apply_rewrite` with source "{version}", an id and its params; then `check` or `evaluate`.',
    )
    return ToolOutcome(answer)


class ApplyRewriteArguments(SourceArguments):
    """Arguments of `apply_rewrite`."""

    id: str = Field(description="an id of list_rewrites, such as technique@site")
    params: dict[str, int | str] = Field(
        default_factory=dict, description="its parameters, as listed; empty: the most promising ones"
    )


class ApplyRewriteAnswer(ToolAnswer):
    """A new version, and why it computes the same."""

    version: str
    title: str
    keeps: str
    text: str = ""

    def render(self) -> str:
        """Return what was changed, and the new source if it was asked for."""
        keeps = f" It keeps what is computed: {self.keeps}" if self.keeps else ""
        return f"{self.version}: {self.title}.{keeps}" + (f"\n\n{self.text}" if self.text else "")


async def apply_rewrite(bench: Workbench, said: ApplyRewriteArguments) -> ToolOutcome:
    """Carry out one safe rewrite; it makes a new version."""
    version, source = resolve_source(bench, said.source, said.edits)
    technique, _, site = said.id.strip(" `").partition("@")
    wanted = OfferedRewrite(technique=technique, site=site, params=said.params)
    if (technique, site) == (RAISE, WHOLE_KERNEL) and not said.params:
        made = await _raise_kernel(bench, source)
    else:
        wanted = wanted if said.params else await _find_offered(bench, source, wanted.id)
        made = await _carry_out(bench, source, wanted)
    new = bench.add_version(made.source)
    answer = ApplyRewriteAnswer(
        version=new,
        title=made.title or wanted.title,
        keeps=made.keeps,
        text=made.source if said.more else "",
        next=f"`evaluate` {new}; `compare` {version} and {new} shows what changed.",
    )
    return ToolOutcome(answer)


async def _carry_out(bench: Workbench, source: str, wanted: OfferedRewrite) -> AppliedRewrite:
    try:
        return await _rewriter(bench).apply_rewrite(source, wanted, bench.task.place)
    except RoleError as error:
        raise _engine_fault(error) from error


async def _find_offered(bench: Workbench, source: str, wanted: str) -> OfferedRewrite:
    found = await _offered(bench, source)
    ids = list(dict.fromkeys(one.id for one in found.rewrites))
    if wanted in ids:
        return next(one for one in found.rewrites if one.id == wanted)
    near = get_close_matches(wanted, ids, n=3, cutoff=0.3)
    hint = f"Near to it: {', '.join(near)}." if near else "`list_rewrites` says what applies."
    raise ToolFault("unknown_rewrite", f"no rewrite {wanted!r} applies to this version", hint)


async def _offered(bench: Workbench, source: str) -> OfferedRewrites:
    """The rewrites of a kernel; of one that is hard to read, first of all its canonical form."""
    raised = await _find_raised(bench, source)
    first = () if raised is None else (raised[0],)
    try:
        found = await _rewriter(bench).list_rewrites(source, bench.task.place)
    except RoleError as error:
        if not first or error.info.code != "unreadable_kernel":
            raise _engine_fault(error) from error
        return OfferedRewrites(rewrites=first)
    return found.model_copy(update={"rewrites": (*first, *found.rewrites)})


async def _find_raised(bench: Workbench, source: str) -> tuple[OfferedRewrite, CanonicalKernel] | None:
    """The rewrite that writes a kernel anew, if that leaves less that is hard to read, and the new kernel.

    If the place that judges kernels cannot say, there is none: the other rewrites do not need it.
    """
    rewriter, place = _rewriter(bench), bench.task.place
    try:
        obstacles = await rewriter.find_obstacles(source, place)
        form = await find_canonical_form(bench.lab, source, place.target) if obstacles else None
        left = await rewriter.find_obstacles(form.source, place) if form and form.source else ()
    except RoleError:
        return None
    if form is None or (len(left) >= len(obstacles) and not form.ported):
        return None
    what = "port the kernel to the current namespace" if form.ported else "write the kernel anew"
    title = f"{what}, in the form that rewrites read best ({obstacles[0]})"
    return OfferedRewrite(technique=RAISE, site=WHOLE_KERNEL, title=title), form


async def _raise_kernel(bench: Workbench, source: str) -> AppliedRewrite:
    raised = await _find_raised(bench, source)
    if raised is None:
        raise ToolFault("does_not_apply", "the kernel has no clearer form", _ADVICE["does_not_apply"])
    offered, form = raised
    assert form.source is not None
    keeps = "" if form.ported else "both kernels issue the same program, instruction by instruction"
    return AppliedRewrite(source=form.source, title=offered.title, keeps=keeps)


def _engine_fault(error: RoleError) -> ToolFault:
    return ToolFault(error.info.code, error.info.message, _ADVICE.get(error.info.code, ""))


def _rewriter(bench: Workbench) -> Rewriter:
    assert bench.rewriter is not None, "the registry offers these tools only where there is an engine"
    return bench.rewriter
