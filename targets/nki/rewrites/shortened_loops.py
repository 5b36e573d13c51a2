"""Gives a kernel whose sizes are numbers fewer iterations, so that it is predicted sooner.

A dimension of an argument is walked by one loop in each place that reads it. If these loops run less often,
so must all others that walk the same iterations of other arrays: what they leave out is never read. Such
loops are a family. With some families shortened, a kernel does the same work less often, and a rewrite's gain
is close to its gain with all iterations.

Rewritten kernels have other loops, but the same arguments. So a shortening names dimensions of arguments, and
each kernel's own loops along them are shortened. A loop may walk the iterations of a family several times, as
one that fills all tiles of a list does. It then leaves out the same ones each time. In a pipelined kernel,
some statements walk the first or the last iterations only. The loop between them leaves out its last ones,
and those that walk the last iterations begin as much earlier.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import gcd, prod

import libcst as cst

from nki_sim.targets import Target
from targets.nki.rewrites import syntax
from targets.nki.rewrites.estimate import tile_bytes
from targets.nki.rewrites.kernel_ir import Guard, Kernel, Loop, Node, Statement, StatementKind
from targets.nki.rewrites.loop_ranges import range_name
from targets.nki.rewrites.proxy_problem import MIN_TRIPS
from targets.nki.rewrites.values import Affine, Tensor, TensorView

_SMALL_SHARE = 4
"""Tiles that a family indexes count as few if they take at most one such part of SBUF."""

_Place = tuple[str, int]
"""A dimension of a tensor (`shape`), or of the lists around it (`list`)."""


class _CannotShortenError(Exception):
    """Some loops cannot run less often without changing what the others do."""


@dataclass(frozen=True, slots=True)
class ShortenedDimension:
    """How many times fewer iterations walk a dimension of an argument."""

    argument: int
    axis: int
    divisor: int


@dataclass(frozen=True, slots=True)
class LoopFamily:
    """Loops that walk the same iterations, and the returned arrays that they fill, by the dimension.

    `periods` is by loop: how many of its iterations walk those of the family. After these it begins with them
    again; if it has fewer, others walk the rest. `tails` is the same by loops that walk the last ones only.
    Their index, modulo each of `moduli`, chooses tiles, and has to stay the same. Each of `ends` is how much
    of a dimension is left to the first or the last iterations, and how much all of them walk.
    """

    periods: Mapping[str, int]
    tails: Mapping[str, int]
    moduli: frozenset[tuple[str, int]]
    ends: frozenset[tuple[int, int]]
    results: tuple[tuple[int, int], ...]

    @property
    def loops(self) -> frozenset[str]:
        return frozenset(self.periods)

    def can_be_divided(self, divisor: int, trips: Mapping[str, int]) -> bool:
        """Whether all loops can leave out the same iterations; `trips` are those that they have now."""
        if any(period % divisor for period in (*self.periods.values(), *self.tails.values())):
            return False
        if any(2 * size * divisor > end for size, end in self.ends):
            return False
        walked = all(_left_out(period, divisor) < trips[loop] for loop, period in self.periods.items())
        return walked and all(_left_out(self.tails[loop], divisor) % size == 0 for loop, size in self.moduli)


def find_shortening(kernel: Kernel, most: int, target: Target) -> tuple[ShortenedDimension, ...]:
    """The dimensions to shorten until at most `most` instructions are left, or no more can be; () for none.

    Loops that lie in no other are shortened first.
    """
    families = _find_families(kernel)
    trips, divisors = dict(kernel.trips), dict.fromkeys(families, 1)
    while _count_instructions(kernel, trips) > most:
        choices = []
        for key, family in families.items():
            walked = [period // divisors[key] for period in family.periods.values()]
            factor = _smallest_factor(walked)
            divisor = divisors[key] * (factor or 1)
            if not (factor and family.can_be_divided(divisor, kernel.trips)):
                continue
            if _keeps_its_memory(kernel, family, divisor, target):
                left = min(walked) // factor
                choices.append((_are_outermost(kernel, family), left, key, factor))
        if not choices:
            break
        *_, key, factor = max(choices)
        for loop, period in families[key].periods.items():
            if period > kernel.trips[loop]:
                trips[loop] -= _left_out(period // divisors[key], factor)
            else:
                trips[loop] //= factor
        divisors[key] *= factor
    wanted = [ShortenedDimension(*key, divisor) for key, divisor in divisors.items() if divisor > 1]
    made = shorten_loops(kernel, wanted, target)
    return made.dimensions if made is not None else ()


@dataclass(frozen=True, slots=True)
class ShortenedKernel:
    """A kernel with fewer iterations, and along which dimensions.

    These are some of the dimensions that were wanted, perhaps with smaller divisors.
    """

    source: str
    dimensions: tuple[ShortenedDimension, ...]


def shorten_loops(
    kernel: Kernel, wanted: Sequence[ShortenedDimension], target: Target
) -> ShortenedKernel | None:
    """Shorten a kernel along dimensions, each as far as its loops allow; None if they allow nothing."""
    cuts: dict[str, dict[_Cut, None]] = {}
    shifts: dict[str, int] = {}
    shapes: dict[tuple[int, int], int] = {}
    made: list[ShortenedDimension] = []
    for one in wanted:
        try:
            family = _FamilySearch(kernel).find_along(one.argument, one.axis)
        except _CannotShortenError:
            continue
        divisor = _largest_divisor(kernel, family, one.divisor, target)
        wanted_cuts = {loop: _Cut(period, divisor) for loop, period in family.periods.items()}
        is_made = all(cut in cuts.get(loop, ()) for loop, cut in wanted_cuts.items())
        if divisor == 1 or not (is_made or _are_compatible(kernel, wanted_cuts, cuts, family.tails, shifts)):
            continue
        made.append(ShortenedDimension(one.argument, one.axis, divisor))
        if is_made:
            continue
        for loop, cut in wanted_cuts.items():
            cuts.setdefault(loop, {})[cut] = None
        shifts |= {loop: _left_out(period, divisor) for loop, period in family.tails.items()}
        for tensor, axis in family.results:
            shapes[tensor, axis] = shapes.get((tensor, axis), 1) * divisor
    return ShortenedKernel(_write_shortened(kernel, cuts, shifts, shapes), tuple(made)) if made else None


def _are_compatible(
    kernel: Kernel,
    wanted: Mapping[str, _Cut],
    cuts: Mapping[str, Collection[_Cut]],
    tails: Collection[str],
    shifts: Collection[str],
) -> bool:
    """Whether a family can be shortened beside others: a loop of both is cut at different periods."""
    for loop, cut in wanted.items():
        both = [cut, *cuts.get(loop, ())]
        walks_part = any(one.period > kernel.trips[loop] for one in both)
        if len(both) > 1 and (walks_part or len({one.period for one in both}) < len(both)):
            return False
    return set(tails).isdisjoint(shifts)


def _largest_divisor(kernel: Kernel, family: LoopFamily, most: int, target: Target) -> int:
    """The largest divisor of `most` by which a family can be shortened; 1 if there is none."""
    periods = family.periods.values()
    for divisor in range(min(most, min(periods) // MIN_TRIPS), 1, -1):
        divides = most % divisor == 0 and family.can_be_divided(divisor, kernel.trips)
        if divides and _keeps_its_memory(kernel, family, divisor, target):
            return divisor
    return 1


def _find_families(kernel: Kernel) -> dict[tuple[int, int], LoopFamily]:
    """The families along dimensions of arguments, each once, that can be shortened."""
    found: dict[tuple[int, int], LoopFamily] = {}
    for number, argument in enumerate(kernel.arguments):
        for axis in range(len(getattr(argument, "shape", ()))):
            try:
                family = _FamilySearch(kernel).find_along(number, axis)
            except _CannotShortenError:
                continue
            if family.periods not in [one.periods for one in found.values()]:
                found[number, axis] = family
    return found


@dataclass(frozen=True, slots=True)
class _Cut:
    """Of each `period` iterations of a loop, only the first part, by a divisor, is left."""

    period: int
    divisor: int


def _left_out(period: int, divisor: int) -> int:
    return period - period // divisor


class _FamilySearch:
    """Collects the loops that must run less often together."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._loops: dict[str, Loop] = {loop.id: loop for loop in kernel.loops}
        self._returned = _returned_ids(kernel)
        self._seen: set[tuple[int, _Place, int]] = set()
        self._periods: dict[str, int] = {}
        self._tails: dict[str, int] = {}
        self._moduli: set[tuple[str, int]] = set()
        self._ends: set[tuple[int, int]] = set()
        self._followed: set[Loop] = set()
        self._results: dict[tuple[int, int], None] = {}

    def find_along(self, argument: int, axis: int) -> LoopFamily:
        """The family along a dimension of an argument.

        Raises:
            _CannotShortenError: something else needs all iterations.
        """
        if any(item.kind is StatementKind.OPAQUE for item in self._kernel.statements):
            raise _CannotShortenError
        name = self._kernel.function.params.params[argument].name.value
        tensors = {
            access.tensor.id: access.tensor
            for item in self._kernel.operations()
            for access in item.accesses
            if access.tensor.name == name and access.tensor.id not in self._kernel.declarations
        }
        for tensor in tensors.values():
            self._follow_place(tensor, ("shape", axis), tensor.shape[axis])
        if not self._periods:
            raise _CannotShortenError
        return LoopFamily(
            self._periods, self._tails, frozenset(self._moduli), frozenset(self._ends), tuple(self._results)
        )

    def _follow_place(self, tensor: Tensor, place: _Place, end: int) -> None:
        """Every access must have a loop whose iterations cover a dimension up to `end`."""
        if (tensor.id, place, end) in self._seen:
            return
        self._seen.add((tensor.id, place, end))
        if tensor.id in self._returned and place[0] == "shape":
            if tensor.shape[place[1]] != end:  # the result would have gaps
                raise _CannotShortenError
            self._results[tensor.id, place[1]] = None
        for _, access in self._kernel.uses_of(tensor):
            found = dict(_places_of(access.view))
            if place not in found:
                raise _CannotShortenError
            self._follow_window(*found[place], end)

    def _follow_window(self, start: Affine, extent: int, end: int) -> None:
        """Add the loop that walks a dimension up to `end`, or the part that pipelining left to it."""
        if min((value for _, value in start.terms), default=-1) < 0:
            raise _CannotShortenError
        whole = self._outer_loop(start, extent, end, is_whole=True)
        if whole is not None:
            self._add_loop(*whole)
            return
        last = start.const + extent + sum(value * (self._loops[one].trips - 1) for one, value in start.terms)
        if start.const * 2 >= end:
            self._ends.add((end - start.const, end))
            self._add_tail(start, end)
        elif last * 2 <= end:
            self._ends.add((last, end))
        else:
            part = self._outer_loop(start, extent, end, is_whole=False)
            if part is None:
                raise _CannotShortenError
            self._add_loop(*part)

    def _outer_loop(self, start: Affine, extent: int, end: int, *, is_whole: bool) -> tuple[Loop, int] | None:
        """The loop whose steps, each of which smaller ones fill, cover a dimension up to `end`, or a part.

        Also in how many of its iterations all is covered; after these it may cover as much again. A part may
        begin anywhere.
        """
        before = start.const if is_whole else 0
        for name, factor in sorted(start.terms, key=lambda term: -term[1]):
            loop = self._loops[name]
            walked = factor * loop.trips
            covers = walked % end == 0 if is_whole else factor < walked < end
            if 0 < factor < end and end % factor == 0 and covers:
                inner = sum(
                    value * (self._loops[one].trips - 1) for one, value in start.terms if value < factor
                )
                if before + inner + extent > factor:
                    break
                return loop, end // factor
        return None

    def _add_tail(self, start: Affine, end: int) -> None:
        """Add the loop that walks the last iterations, which begins where others end."""
        for name, factor in start.terms:
            loop = self._loops[name]
            if loop.start.terms or 2 * factor * loop.start.const < end or end % factor or loop.step != 1:
                continue
            period = end // factor
            if self._tails.setdefault(name, period) != period or name in self._periods:
                raise _CannotShortenError
            if loop not in self._followed:
                self._followed.add(loop)
                self._follow_tail(loop, period)
            return
        raise _CannotShortenError

    def _follow_tail(self, loop: Loop, period: int) -> None:
        for tensor, place, start in self._list_places(loop, is_whole=False):
            factor = start.coefficient(loop.id)
            if 2 * start.const >= factor * period:
                self._follow_place(tensor, place, factor * period)
            else:
                kind, number = place
                self._moduli.add((loop.id, (tensor.shape if kind == "shape" else tensor.copies)[number]))

    def _add_loop(self, loop: Loop, period: int) -> None:
        if self._periods.setdefault(loop.id, period) != period:
            raise _CannotShortenError
        if loop.start != Affine(0) or loop.step != 1 or loop.id in self._tails:
            raise _CannotShortenError
        if loop in self._followed:
            return
        self._followed.add(loop)
        for tensor, place, start in self._list_places(loop, is_whole=period == loop.trips):
            self._follow_place(tensor, place, start.coefficient(loop.id) * period)

    def _list_places(self, loop: Loop, *, is_whole: bool) -> Iterator[tuple[Tensor, _Place, Affine]]:
        """The dimensions of tensors that are indexed by a loop, and where the windows begin.

        Raises:
            _CannotShortenError: something in the loop may need an iteration that is left out.
        """
        for item in self._kernel.nodes:
            if isinstance(item, Guard) and loop in item.loops and (item.difference.const or not is_whole):
                raise _CannotShortenError
            if not isinstance(item, Statement):
                continue
            for access in item.accesses:
                if any(loop.id in place.loops for place in access.view.within):
                    raise _CannotShortenError
                for place, (start, _) in _places_of(access.view):
                    if start.coefficient(loop.id):
                        yield access.tensor, place, start


def _places_of(view: TensorView) -> Iterator[tuple[_Place, tuple[Affine, int]]]:
    """Where a view begins along each dimension, and how far it reaches from there."""
    for number, pick in enumerate(view.picks):
        yield ("list", number), (pick, 1)
    for number, part in enumerate(view.box):
        yield ("shape", number), (part.start, part.extent)


def _returned_ids(kernel: Kernel) -> frozenset[int]:
    """Ids of the declared tensors that a kernel returns."""
    returned = frozenset().union(
        *(item.uses for item in kernel.statements if item.kind is StatementKind.INERT)
    )
    return frozenset(key for key, item in kernel.declarations.items() if item.binds & returned)


def _keeps_its_memory(kernel: Kernel, family: LoopFamily, divisor: int, target: Target) -> bool:
    """Whether fewer iterations leave the kernel as short of memory as it was, or as far from it.

    Tiles that do not fit by themselves, shortened or not, spill in either case. The others must be few.
    """
    indexed = {
        access.tensor
        for item in kernel.operations()
        for access in item.accesses
        if access.tensor.buffer == "sbuf" and access.view.loops & family.loops
    }
    most = target.sbuf_usable_bytes
    sizes = [tile_bytes(one) for one in indexed if not set(one.home) & family.loops]
    return sum(size for size in sizes if size // divisor <= most) * _SMALL_SHARE <= most


def _are_outermost(kernel: Kernel, family: LoopFamily) -> bool:
    return all(loop.is_outermost for loop in kernel.loops if loop.id in family.loops)


def _smallest_factor(trips: Sequence[int]) -> int | None:
    """The smallest number of parts that every loop can be cut into, with `MIN_TRIPS` iterations left."""
    common = gcd(*trips)
    most = min(trips) // MIN_TRIPS
    return next((factor for factor in range(2, most + 1) if common % factor == 0), None)


def _count_instructions(kernel: Kernel, trips: Mapping[str, int]) -> int:
    return sum(prod(trips[loop.id] for loop in item.free_loops) for item in kernel.operations())


def _write_shortened(
    kernel: Kernel,
    cuts: Mapping[str, Collection[_Cut]],
    shifts: Mapping[str, int],
    shapes: Mapping[tuple[int, int], int],
) -> str:
    def emit(node: Node) -> list[cst.BaseStatement] | None:
        if isinstance(node, Loop) and node.id in cuts:
            return [_write_loop(kernel, node, cuts[node.id], syntax.rebuild_block(node.body, emit))]
        if isinstance(node, Loop) and node.id in shifts:
            first = node.start.const - shifts[node.id]
            body = syntax.rebuild_block(node.body, emit)
            return [_replace_range(kernel, node, f"{first}, {first + node.trips}", body)]
        tensor = node.tensor if isinstance(node, Statement) else None
        if tensor is None or not any(key == tensor.id for key, _ in shapes):
            return None
        assert isinstance(node, Statement)
        sizes = [size // shapes.get((tensor.id, axis), 1) for axis, size in enumerate(tensor.shape)]
        return [_write_declaration(kernel, node, sizes)]

    return syntax.render_module(kernel, syntax.rebuild_block(kernel.body, emit))


def _write_loop(
    kernel: Kernel, loop: Loop, cuts: Collection[_Cut], body: Sequence[cst.BaseStatement]
) -> cst.BaseStatement:
    """The loop with fewer iterations; a name inside it has the index that it had."""
    index = var = loop.var
    again = sorted((cut for cut in cuts if cut.period < loop.trips), key=lambda cut: cut.period)
    if again:
        var = index = kernel.fresh_name(f"{loop.var}_short")
        for cut in again:  # the longer the period, the further out in the index
            left = cut.period // cut.divisor
            index = f"(({index}) // {left} * {cut.period} + ({index}) % {left})"
        body = [syntax.parse_statement(f"{loop.var} = {index}"), *body]
    trips = loop.trips // prod(cut.divisor for cut in cuts)
    for cut in cuts:
        if cut.period > loop.trips:  # then it is the only one
            trips = loop.trips - _left_out(cut.period, cut.divisor)
    return _replace_range(kernel, loop, str(trips), body, var)


def _replace_range(
    kernel: Kernel, loop: Loop, bounds: str, body: Sequence[cst.BaseStatement], var: str | None = None
) -> cst.BaseStatement:
    made = syntax.make_loop(var or loop.var, f"{range_name(kernel, loop)}({bounds})", body)
    return syntax.with_leading_lines(made, syntax.leading_lines(loop.node))


def _write_declaration(kernel: Kernel, item: Statement, sizes: Sequence[int]) -> cst.BaseStatement:
    """The declaration of an array of other sizes."""
    (shared,) = kernel.tree.find_line(item.place)
    line = deepcopy(shared)
    assert isinstance(line, ast.Assign)
    assert isinstance(line.value, ast.Call)
    shape = ast.Tuple([ast.Constant(size) for size in sizes], ast.Load())
    if line.value.args:
        line.value.args[0] = shape
    else:
        (named,) = [word for word in line.value.keywords if word.arg == "shape"]
        named.value = shape
    return syntax.parse_statement(ast.unparse(line))
