"""Finds linear recurrences among recorded operations: s[t] = f[t] * s[t - 1] + g[t], in passes of a loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from remote.judge.identity.expression import Expression, Node

SHORTEST = 8
"""Passes that are worth it."""

_MOST = 64
"""Recurrences that are looked at, the longest first: each takes a look at all operations."""


@dataclass(frozen=True, slots=True)
class Chain:
    """The operations that give s[1], s[2], ..., what each takes, and the one that gives s[0]."""

    states: Sequence[int]
    factors: Sequence[int]
    terms: Sequence[int]
    initial: int
    products: frozenset[int]

    @property
    def needs(self) -> set[int]:
        return {*self.factors, *self.terms, self.initial}


def chains(expression: Expression, needed: Sequence[int]) -> list[Chain]:
    """Return recurrences whose factors and terms do not depend on the states; no two share an operation."""
    links = _links(expression.nodes, needed, {*expression.outputs})
    following = {before: number for number, (before, _, _, _) in links.items()}
    firsts = [number for number, (before, _, _, _) in links.items() if before not in links]
    found = [_chain(number, links, following) for number in firsts]
    found = [chain for chain in found if _regular(chain, expression.nodes)]
    found.sort(key=lambda chain: -len(chain.states))
    return [chain for chain in found[:_MOST] if _independent(chain, expression.nodes, needed)]


_Link = tuple[int, int, int, int]
"""Of a state: the one before, the factor, the term, the product of the first two."""


def _links(nodes: Sequence[Node], needed: Sequence[int], outputs: set[int]) -> dict[int, _Link]:
    users: dict[int, int] = {}
    for number in needed:
        for at in nodes[number].args:
            users[at] = users.get(at, 0) + 1
    sums = {
        number for number in needed if nodes[number].params[:1] == ("add",) and nodes[number].kind == "binary"
    }
    found: dict[int, _Link] = {}
    taken: set[int] = set()
    for number in sorted(sums):
        for link in _readings(nodes, number):
            before, _, _, product = link
            alone = users[product] == 1 and product not in outputs
            if (
                before in sums
                and before not in taken
                and alone
                and nodes[before].shape == nodes[number].shape
            ):
                found[number] = link
                taken.add(before)
                break
    return found


def _readings(nodes: Sequence[Node], number: int) -> list[_Link]:
    """Every way to take a sum for a step of a recurrence."""
    one, other = nodes[number].args
    return [
        (before, factor, term, product)
        for product, term in ((one, other), (other, one))
        if nodes[product].kind == "binary" and nodes[product].params == ("multiply",)
        for factor, before in (nodes[product].args, nodes[product].args[::-1])
    ]


def _chain(first: int, links: Mapping[int, _Link], following: Mapping[int, int]) -> Chain:
    states = [first]
    while states[-1] in following:
        states.append(following[states[-1]])
    parts = [links[number] for number in states]
    return Chain(
        states=states,
        factors=[factor for _, factor, _, _ in parts],
        terms=[term for _, _, term, _ in parts],
        initial=parts[0][0],
        products=frozenset(product for _, _, _, product in parts),
    )


def _regular(chain: Chain, nodes: Sequence[Node]) -> bool:
    """Whether it is long, and all of its passes are of the same shapes."""
    shapes = ({nodes[at].shape for at in numbers} for numbers in (chain.factors, chain.terms))
    return len(chain.states) >= SHORTEST and all(len(each) == 1 for each in shapes)


def _independent(chain: Chain, nodes: Sequence[Node], needed: Sequence[int]) -> bool:
    """Whether nothing that the chain takes depends on its states."""
    inside = {*chain.states}
    depends: set[int] = set()
    for number in needed:
        own = number in inside or number in chain.products
        if not own and any(at in inside or at in depends for at in nodes[number].args):
            depends.add(number)
    return not chain.needs & depends
