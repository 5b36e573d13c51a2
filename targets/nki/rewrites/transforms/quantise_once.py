"""Products in MX types: up to four steps of a contraction become one product, of operands quantised once.

An MX product contracts 512 rows in the time of a bfloat16 product over 128: each partition holds four rows of
the contraction, side by side. Any four steps of a loop may be those rows, as long as both operands agree:
a sum does not depend on which. If the steps do not divide by four, three or two of them are one product. Its
other rows are zeros, which change neither the scales nor the sum. An operand that is complete before the loop
is quantised there, once for all products that read it. One that the loop itself makes is packed as it comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import libcst as cst

from nki_sim.dtypes import PACKED_ELEMENTS
from nki_sim.operators.rules.mx import QUADRANT
from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.arithmetic import names_in
from targets.nki.rewrites.declarations import shape_texts
from targets.nki.rewrites.kernel_ir import (
    Access,
    Kernel,
    Loop,
    Node,
    Statement,
    StatementKind,
    loop_contains,
    walk_nodes,
)
from targets.nki.rewrites.loop_ranges import range_name
from targets.nki.rewrites.slices import SourceWindow, parse_windows
from targets.nki.rewrites.transform import Choice, RewriteRefused, Transform
from targets.nki.rewrites.values import Affine, Tensor

ALL_PRODUCTS = "all products"
"""The site of all loops whose products can be changed, so that what they share is quantised once."""
PACKED_TYPE = "float8_e4m3fn_x4"
SCALE_TYPE = "float8_e8m0fnu"
_SIXTEEN_BITS = frozenset({"bfloat16", "float16"})
_OPERAND_TYPES = _SIXTEEN_BITS | {"float32"}
_SUM_TYPES = frozenset({"float32", "bfloat16"})
_SIDES = ("stationary", "moving")
_ARGUMENTS = frozenset({"dst", *_SIDES, "accumulate", "name"})


@dataclass(frozen=True, eq=False)
class ReadyOperand:
    """A tile with a dimension for the steps of a contraction, complete before `before`, a loop or condition.

    An operand is a window of its `column_axis`, at one place along all other axes.
    """

    tensor: Tensor
    windows: tuple[SourceWindow, ...]
    step_axis: int
    column_axis: int
    before: Node
    ancestors: tuple[Node, ...]
    """The loops and conditions around `before`, outermost first."""

    @property
    def other_axes(self) -> list[int]:
        known = {0, self.step_axis, self.column_axis}
        return [axis for axis in range(len(self.windows)) if axis not in known]

    @property
    def steps(self) -> int:
        """How many steps are one product."""
        return _find_group_size(self.tensor.shape[self.step_axis])

    def index(self, places: Sequence[str], group: str, columns: str) -> str:
        """The subscript of packed numbers or scales: a group of steps at one place along the other axes."""
        return f"[{', '.join([':', *places, group, columns])}]"


@dataclass(frozen=True, eq=False)
class Contraction:
    """The products of a loop's body, each with what becomes of its operands; None: packed in the loop."""

    loop: Loop
    products: tuple[Statement, ...]
    ready: Mapping[tuple[Statement, str], ReadyOperand | None]


ContractionLoops = tuple[Loop, ...]


class QuantiseOnce(Transform[ContractionLoops]):
    """Quantises operands to MXFP8 and multiplies up to four steps of a contraction at a time."""

    id: ClassVar[str] = "quantise_once"
    counter: ClassVar[str] = "tensor_engine_active_time_percent"
    keeps: ClassVar[str] = (
        "the same products are added up, of operands rounded to 8 bits with a common scale for each 32, "
        "which is for problems alone that allow it"
    )
    rounds_products: ClassVar[bool] = True

    def find_sites(self, kernel: Kernel, target: Target) -> Mapping[str, ContractionLoops]:
        if not target.mx_contract_max:
            return {}
        loops = [loop for loop in kernel.loops if _direct_products(loop)]
        found = {f"products over {kernel.unique_label(loop)}": (loop,) for loop in loops}
        return found if len(loops) < len("ab") else {ALL_PRODUCTS: tuple(loops), **found}

    def list_choices(self, kernel: Kernel, target: Target, place: ContractionLoops) -> tuple[Choice, ...]:
        del target
        _plan_contractions(kernel, place)
        return ({},)

    def apply(self, kernel: Kernel, target: Target, place: ContractionLoops, choice: Choice) -> str:
        del target, choice
        return _ProductWriter(kernel, _plan_contractions(kernel, place)).write_module()


# -- planning ------------------------------------------------------------------------------------


def _find_group_size(trips: int) -> int:
    """How many steps of a loop are one product: the most that divide them evenly; 1 if none do."""
    return next((size for size in range(PACKED_ELEMENTS, 1, -1) if trips % size == 0), 1)


def _direct_products(loop: Loop) -> list[Statement]:
    """The products in a loop's body that add up over its iterations."""
    items = (item for item in loop.body if isinstance(item, Statement) and item.op == "nc_matmul")
    return [item for item in items if (dst := item.find_access("dst")) and loop.id not in dst.tensor.home]


def _plan_contractions(kernel: Kernel, place: ContractionLoops) -> list[Contraction]:
    """Plan the loops of a site; of several, those that can be changed.

    Raises:
        RewriteRefused: none of them can, or only one of several, which has a site of its own.
    """
    plans, reasons = list[Contraction](), list[RewriteRefused]()
    for loop in place:
        try:
            plans.append(_plan_contraction(kernel, loop))
        except RewriteRefused as refusal:
            reasons.append(refusal)
    if len(plans) < min(len(place), len("ab")):
        raise reasons[0]
    return plans


def _plan_contraction(kernel: Kernel, loop: Loop) -> Contraction:
    products = tuple(_direct_products(loop))
    if loop.index_text != loop.var or _find_group_size(loop.trips) == 1:
        raise RewriteRefused(
            f"the steps of the loop over {loop.var} do not count 0, 1, ... in fours, threes or twos"
        )
    inside = [item for item in kernel.statements if loop_contains(loop, item)]
    opaque = [item for item in inside if item.kind is StatementKind.OPAQUE]
    if opaque:
        raise RewriteRefused(f"the loop over {loop.var} holds what cannot be read: {opaque[0].reason}")
    bound = _bound_names(loop)
    ready: dict[tuple[Statement, str], ReadyOperand | None] = {}
    for item in products:
        _check_product(kernel, loop, item, bound=bound)
        for side in _SIDES:
            ready[item, side] = _find_ready_operand(kernel, loop, item, side)
    sums = {access.tensor.id for item in products for access in [item.find_access("dst")] if access}
    others = [item for item in inside if item not in products]
    for access in (access for item in others for access in item.accesses):
        if access.tensor.id in sums:
            raise RewriteRefused(f"{access.tensor.name} is used by more than the products over {loop.var}")
    return Contraction(loop, products, ready)


def _bound_names(loop: Loop) -> frozenset[str]:
    """The names that an iteration of a loop gives a meaning."""
    nodes = list(walk_nodes(loop.body))
    inner = frozenset(node.var for node in nodes if isinstance(node, Loop))
    return frozenset({loop.var}).union(inner, *(node.binds for node in nodes if isinstance(node, Statement)))


def _check_product(kernel: Kernel, loop: Loop, item: Statement, *, bound: frozenset[str]) -> None:
    strange = sorted(item.texts.keys() - _ARGUMENTS)
    if strange:
        raise RewriteRefused(f"the product says {strange[0]}")
    if item.arguments.get("accumulate") not in {None, True}:
        raise RewriteRefused(f"the product does not add up over {loop.var}")
    dst, left, right = (item.find_access(role) for role in ("dst", *_SIDES))
    assert dst is not None
    assert left is not None
    assert right is not None
    if (
        loop.id in dst.view.loops
        or names_in(item.texts["dst"]) & bound
        or dst.tensor.id in kernel.escaping_ids
    ):
        raise RewriteRefused(f"{item.texts['dst']} is not one sum over {loop.var}")
    if dst.tensor.dtype not in _SUM_TYPES:
        raise RewriteRefused(
            f"{dst.tensor.name} is {dst.tensor.dtype}, MX products add up in float32 or bfloat16"
        )
    for access in (left, right):
        if len(access.view.shape) != len("pf") or access.tensor.buffer != "sbuf" or access.tensor.copies:
            raise RewriteRefused(f"{item.texts[access.role]} is no matrix in SBUF")
        if access.tensor.dtype not in _OPERAND_TYPES or access.tensor.id in kernel.escaping_ids:
            raise RewriteRefused(f"{access.tensor.name} is {access.tensor.dtype}, or has a second name")
    rows, columns = left.view.shape
    if rows % QUADRANT or columns % len("ab"):
        raise RewriteRefused(f"MX products take no {rows} rows by {columns} columns")


def _find_ready_operand(kernel: Kernel, loop: Loop, item: Statement, side: str) -> ReadyOperand | None:
    """The operand as a part of a tile that holds all steps of the loop; None if it has to be packed there."""
    access = item.find_access(side)
    assert access is not None
    try:
        windows = parse_windows(kernel, item.texts[side], len(access.tensor.shape))
    except RewriteRefused:
        return None
    steps = [axis for axis, window in enumerate(windows) if window.text == loop.var]
    columns = [axis for axis, window in enumerate(windows) if window.kept and axis]
    if len(steps) != 1 or len(columns) != 1 or not _holds_all_steps(access, loop, steps[0]):
        return None
    used = frozenset().union(*(names_in(_readable(window.text)) for window in windows)) - {loop.var}
    if used & _bound_names(loop):
        return None
    for *ancestors, node in _chains(kernel, loop):
        is_declared = not _holds(node, kernel.declarations[access.tensor.id])
        if is_declared and not any(_holds(node, user) for user in _writers(kernel, access.tensor)):
            return ReadyOperand(access.tensor, tuple(windows), steps[0], columns[0], node, tuple(ancestors))
    return None


def _readable(window: str) -> str:
    """The source of a window as an expression."""
    return f"({', '.join(part for part in window.split(':') if part.strip())})" if ":" in window else window


def _holds_all_steps(access: Access, loop: Loop, axis: int) -> bool:
    """Whether a view takes all partitions of a tile and the step of its iteration along an axis."""
    tensor, box = access.tensor, access.view.box
    rows = box[0].start == Affine(0) and box[0].size == tensor.shape[0]
    step = tensor.shape[axis] == loop.trips and box[axis].start == Affine(0, ((loop.id, 1),))
    return access.view.plain and axis > 0 and rows and step


def _chains(kernel: Kernel, loop: Loop) -> Iterator[tuple[Node, ...]]:
    """The loops and conditions around a loop and the loop itself, each after those around it."""
    found: list[Node] = []
    nodes: Sequence[Node] = kernel.body
    while not found or found[-1] is not loop:
        node = next(node for node in nodes if not isinstance(node, Statement) and _holds(node, loop))
        assert not isinstance(node, Statement)
        found.append(node)
        nodes = node.body
        yield tuple(found)


def _holds(node: Node, other: Node) -> bool:
    return any(inner is other for inner in walk_nodes([node]))


def _writers(kernel: Kernel, tensor: Tensor) -> list[Statement]:
    return [item for item in kernel.users_of(tensor) if item.writes_tensor(tensor)]


# -- writing -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Quantised:
    """Names of packed numbers and of their scales, and where they are quantised."""

    data: str
    scale: str
    ready: ReadyOperand


@dataclass(slots=True)
class _LoopParts:
    """A loop over groups of steps: what comes before the steps, instead of products, and after them."""

    loop: Loop
    front: list[cst.BaseStatement] = field(default_factory=list)
    copies: dict[Statement, list[cst.BaseStatement]] = field(default_factory=dict)
    behind: list[cst.BaseStatement] = field(default_factory=list)
    packed: dict[tuple[int, str], tuple[Statement, str, str]] = field(default_factory=dict)
    """By tile and source of an operand: the first product of it, its packed numbers and their scales."""


class _ProductWriter:
    """Writes the loops of several contractions; an operand that several of them read is quantised once."""

    def __init__(self, kernel: Kernel, plans: Iterable[Contraction]) -> None:
        self._kernel = kernel
        self._plans = {plan.loop: plan for plan in plans}
        self._taken: set[str] = set()
        self._quantised: list[_Quantised] = []
        self._operands: dict[tuple[Statement, str], _Quantised] = {}
        for plan in self._plans.values():
            for (item, side), ready in plan.ready.items():
                if ready is not None:
                    self._operands[item, side] = self._quantise_once(ready, item)

    def write_module(self) -> str:
        """The module with its products in MX types."""
        kernel = self._kernel
        return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, self._emit))

    def _emit(self, node: Node) -> list[cst.BaseStatement] | None:
        if isinstance(node, Statement):
            return None
        before = [
            line for one in self._quantised if one.ready.before is node for line in self._write_ready(one)
        ]
        if isinstance(node, Loop) and node in self._plans:
            return [*before, self._write_loop(self._plans[node])]
        if not before:
            return None
        return [*before, syntax.replace_body(node.node, syntax.rebuild_block(node.body, self._emit))]

    def _fresh_name(self, base: str) -> str:
        name, count = self._kernel.fresh_name(base), 1
        while name in self._taken:
            count += 1
            name = self._kernel.fresh_name(f"{base}_{count}")
        self._taken.add(name)
        return name

    def _quantise_once(self, ready: ReadyOperand, item: Statement) -> _Quantised:
        """The quantised operand that a product reads: one that is there already, if its tile is the same."""
        for one in self._quantised:
            other = one.ready
            same = (other.tensor.id, other.step_axis, other.column_axis) == (
                ready.tensor.id, ready.step_axis, ready.column_axis,
            )  # fmt: skip
            is_around = other.ancestors == (*ready.ancestors, ready.before)[: len(other.ancestors)]
            first = _first_statement(other.before)
            if same and is_around and not self._kernel.may_change(ready.tensor, first, item):
                return one
        name = ready.tensor.name
        made = _Quantised(self._fresh_name(f"{name}_mx"), self._fresh_name(f"{name}_scales"), ready)
        self._quantised.append(made)
        return made

    def _write_ready(self, one: _Quantised) -> list[cst.BaseStatement]:
        """The quantisation of a whole tile, the steps of one product at a time."""
        ready, tensor, steps = one.ready, one.ready.tensor, one.ready.steps
        range_, name = f"{self._kernel.nl}.affine_range", tensor.name
        sizes = self._shape_texts(tensor, _first_statement(ready.before), frozenset())
        rows, columns, others = sizes[0], sizes[ready.column_axis], [sizes[axis] for axis in ready.other_axes]
        groups = f"{syntax.group_factor(sizes[ready.step_axis], first=True)} // {steps}"
        packed, at = self._fresh_name(f"{name}_packed"), self._fresh_name("i_group")
        places = [self._fresh_name("i_place") for _ in others]
        index = [":"] * len(sizes)
        index[ready.step_axis] = f"{at} * {steps} : ({at} + 1) * {steps}"
        for axis, place in zip(ready.other_axes, places, strict=True):
            index[axis] = place
        turned = ".permute((0, 2, 1))" if ready.step_axis < ready.column_axis else ""
        group = ready.index(places, at, ":")
        body: list[cst.BaseStatement] = [
            *self._declare_packed(packed, (rows, columns), tensor, steps=steps),
            self._call(
                "tensor_copy",
                {"dst": _first_steps(packed, steps), "src": f"{name}[{', '.join(index)}]{turned}"},
            ),
            self._quantise(packed, (rows, columns), (f"{one.data}{group}", f"{one.scale}{group}")),
        ]
        for var, count in reversed([*zip(places, others, strict=True), (at, groups)]):
            body = [syntax.make_loop(var, f"{range_}({count})", body)]
        shape = (rows, *others, groups, columns)
        made = [
            self._declare(one.data, shape, PACKED_TYPE), self._declare(one.scale, shape, SCALE_TYPE), *body
        ]  # fmt: skip
        note = cst.EmptyLine(
            comment=cst.Comment(f"# {name} is quantised once, for all products that read it.")
        )
        return [syntax.with_leading_lines(made[0], [note]), *made[1:]]

    def _write_loop(self, plan: Contraction) -> cst.BaseStatement:
        """The loop over groups of steps: what they load and pack, then one product for all of them."""
        loop, run = plan.loop, range_name(self._kernel, plan.loop)
        size = _find_group_size(loop.trips)
        group, parts = self._fresh_name(f"{loop.var}_group"), _LoopParts(loop)
        for item in plan.products:
            words = {"dst": item.texts["dst"]}
            scales: dict[str, str] = {}
            parts.copies[item] = []
            for side in _SIDES:
                found = self._operand_texts(plan, item, side, group) or self._pack(item, side, parts)
                words[side], scales[f"{side}_scale"] = found
            kept = {name: item.texts[name] for name in ("accumulate", "name") if name in item.texts}
            parts.behind.append(self._call("nc_matmul_mx", {**words, **scales, **kept}))

        def emit_step(node: Node) -> list[cst.BaseStatement] | None:
            if isinstance(node, Statement) and node in parts.copies:
                return _keep_lines(parts.copies[node], node)
            return self._emit(node)

        body = syntax.rebuild_block(loop.body, emit_step)
        span = f"{group} * {size}, ({group} + 1) * {size}"
        steps = [syntax.make_loop(loop.var, f"{run}({span})", body)] if body else []
        count = f"{syntax.group_factor(loop.stop, first=True)} // {size}"
        made = syntax.make_loop(group, f"{run}({count})", [*parts.front, *steps, *parts.behind])
        return syntax.with_leading_lines(made, syntax.leading_lines(loop.node))

    def _operand_texts(
        self, plan: Contraction, item: Statement, side: str, group: str
    ) -> tuple[str, str] | None:
        """The sources of an operand that stands ready and of its scales."""
        found, ready = self._operands.get((item, side)), plan.ready[item, side]
        if found is None or ready is None:
            return None
        places = [ready.windows[axis].text for axis in ready.other_axes]
        index = ready.index(places, group, ready.windows[ready.column_axis].text)
        return f"{found.data}{index}", f"{found.scale}{index}"

    def _pack(self, item: Statement, side: str, parts: _LoopParts) -> tuple[str, str]:
        """Pack an operand step by step and quantise it, unless an earlier product read the same."""
        access, text = item.find_access(side), item.texts[side]
        assert access is not None
        tensor, kernel = access.tensor, self._kernel
        known = parts.packed.get((tensor.id, text))
        if known is not None:
            first, data, scale = known
            if not kernel.may_change(tensor, first, item) and not kernel.may_rebind(text, first, item):
                return data, scale
        if access.view.is_whole and access.view.plain:
            rows, columns = self._shape_texts(tensor, item, _bound_names(parts.loop))
        else:
            rows, columns = map(str, access.view.shape)
        shape = rows, columns
        tile, data, scale = (self._fresh_name(f"{tensor.name}_{kind}") for kind in ("packed", "mx", "scales"))
        parts.packed[tensor.id, text] = item, data, scale
        size = _find_group_size(parts.loop.trips)
        parts.front += self._declare_packed(tile, shape, tensor, steps=size)
        at = f"{parts.loop.var} % {size}"
        parts.copies[item].append(self._call("tensor_copy", {"dst": f"{tile}[:, :, {at}]", "src": text}))
        parts.behind += [
            self._declare(data, shape, PACKED_TYPE),
            self._declare(scale, shape, SCALE_TYPE),
            self._quantise(tile, shape, (data, scale)),
        ]
        return data, scale

    def _shape_texts(self, tensor: Tensor, at: Statement, bound: frozenset[str]) -> list[str]:
        """The sources of a tile's sizes as its declaration says them, where they mean the same.

        Names that are `bound` mean nothing where the sizes are written.
        """
        kernel, declared = self._kernel, self._kernel.declarations[tensor.id]
        try:
            texts = shape_texts(kernel, declared)
        except RewriteRefused:
            texts = []
        is_same = not any(kernel.may_rebind(text, declared, at) or names_in(text) & bound for text in texts)
        return texts if texts and is_same else [str(size) for size in tensor.shape]

    def _declare(self, name: str, shape: tuple[str, ...], dtype: str) -> cst.BaseStatement:
        nl = self._kernel.nl
        sizes = ", ".join(shape)
        return syntax.parse_statement(
            f"{name} = {nl}.ndarray(({sizes}), dtype={nl}.{dtype}, buffer={nl}.sbuf)"
        )

    def _declare_packed(
        self, name: str, shape: tuple[str, str], tensor: Tensor, *, steps: int
    ) -> list[cst.BaseStatement]:
        """A tile in which the steps of a product lie side by side, with zeros if they are fewer than four."""
        made = [self._declare(name, (*shape, str(PACKED_ELEMENTS)), _packed_type(tensor))]
        if steps < PACKED_ELEMENTS:
            rest = f"{name}[:, :, {steps}:{PACKED_ELEMENTS}]"
            made.append(self._call("memset", {"dst": rest, "value": "0.0"}))
        return made

    def _call(self, op: str, words: Mapping[str, str]) -> cst.BaseStatement:
        function = f"{self._kernel.nisa}.{op}"
        if sum(map(len, [*words, *words.values()])) < syntax.CALL_WIDTH:
            return syntax.make_call(function, words)
        lines = "".join(f"    {name}={text},\n" for name, text in words.items())
        return syntax.parse_statement(f"{function}(\n{lines})")

    def _quantise(self, packed: str, shape: tuple[str, str], to: tuple[str, str]) -> cst.BaseStatement:
        rows, columns = shape
        source = f"{packed}.reshape(({rows}, {syntax.group_factor(columns, first=True)} * {PACKED_ELEMENTS}))"
        return self._call("quantize_mx", {"dst": to[0], "src": source, "dst_scale": to[1]})


def _first_statement(node: Node) -> Statement:
    return next(inner for inner in walk_nodes([node]) if isinstance(inner, Statement))


def _first_steps(packed: str, steps: int) -> str:
    """The part of a packed tile that holds steps; the rest are zeros."""
    return packed if steps == PACKED_ELEMENTS else f"{packed}[:, :, 0:{steps}]"


def _packed_type(tensor: Tensor) -> str:
    """The 16-bit type in which an operand is packed: its own, or bfloat16."""
    return tensor.dtype if tensor.dtype in _SIXTEEN_BITS else "bfloat16"


def _keep_lines(made: list[cst.BaseStatement], item: Statement) -> list[cst.BaseStatement]:
    """The statements with the comments that stood before another one."""
    lines = syntax.leading_lines(item.node)
    return [syntax.with_leading_lines(made[0], lines), *made[1:]] if made else []
