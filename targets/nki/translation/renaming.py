"""Finds products that are the same but for the names of their loops: one tile serves both.

A product that is both summed over and kept, as `a` in `a + a @ a`, is needed along different loops.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from targets.nki.translation.access import Atom
from targets.nki.translation.values import Binary, Contract, Load, Number, Reduce, Select, Unary, Value

Alike = Mapping[Contract, Sequence[tuple[Contract, Mapping[Atom, Atom]]]]
"""By product the others that are the same, each with the loop here by its own loop."""


def find_alike(values: Collection[Value]) -> Alike:
    """Return the products among values that are the same along other loops, operands in either order."""
    forms = _Forms()
    products = [value for value in values if isinstance(value, Contract)]
    by_form: dict[int, list[tuple[Contract, tuple[Atom, ...]]]] = {}
    for product in products:
        crossed = [value for left, right in product.pairs for value in (right, left)]
        for form, loops in (forms.of(product), forms.describe(product, crossed)):
            by_form.setdefault(form, []).append((product, loops))
    found: dict[Contract, list[tuple[Contract, Mapping[Atom, Atom]]]] = {}
    for product in products:
        form, loops = forms.of(product)
        others = [one for one in by_form[form] if one[0] is not product]
        found[product] = [(other, dict(zip(own, loops, strict=True))) for other, own in others]
    return found


class _Forms:
    """What values compute, with numbers in the place of loops: each different one has a number, too."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._found: dict[Value, tuple[int, tuple[Atom, ...]]] = {}

    def of(self, value: Value) -> tuple[int, tuple[Atom, ...]]:
        """Return a value's form, and its loops in the order in which the form has them."""
        if value not in self._found:
            self._found[value] = self.describe(value, value.operands)
        return self._found[value]

    def describe(self, value: Value, operands: Sequence[Value]) -> tuple[int, tuple[Atom, ...]]:
        """Return the form of a value with these operands, and its loops."""
        places: dict[Atom, int] = {}

        def place(atom: Atom) -> tuple[int, int]:
            return places.setdefault(atom, len(places)), atom.size

        own: object
        match value:
            case Number():
                own = value.number
            case Load():
                terms = sorted(value.access.terms, key=lambda term: (term[1], term[0].name))
                walk = tuple((place(atom), stride) for atom, stride in terms)
                own = value.buffer, value.access.offset, walk
            case Unary() | Binary():
                own = value.function
            case Reduce():
                own = value.function, tuple(map(place, value.over))
            case Contract():
                own = tuple(tuple(map(place, over)) for over in value.over)
            case Select():
                own = None
            case _:  # the same as itself only
                operands = ()
                own = value, tuple(map(place, sorted(value.atoms, key=lambda atom: atom.name)))
        forms = ((form, tuple(map(place, loops))) for form, loops in map(self.of, operands))
        key = type(value), own, tuple(forms)
        number = self._numbers.setdefault(key, len(self._numbers))
        return number, tuple(atom for atom in places if atom not in value.bound)
