"""Finds linear recurrences among recorded operations: s[t] = f[t] * s[t - 1] + g[t], over loop iterations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from remote.judge.identity.expression import ArrayExpression, ExpressionNode

MIN_CHAIN_LENGTH = 8
"""Iterations that make a recurrence worth handling."""

_MAX_CHAINS = 64
"""Number of recurrences to check, longest first: each check goes through all operations."""


@dataclass(frozen=True, slots=True)
class RecurrenceChain:
    """The operations that give s[1], s[2], ..., the arguments of each, and the operation that gives s[0]."""

    states: Sequence[int]
    factors: Sequence[int]
    terms: Sequence[int]
    initial: int
    products: frozenset[int]

    @property
    def needed_operations(self) -> set[int]:
        return {*self.factors, *self.terms, self.initial}


def find_chains(expression: ArrayExpression, needed: Sequence[int]) -> list[RecurrenceChain]:
    """Return recurrences whose factors and terms do not depend on the states; no two share an operation."""
    links = _find_links(expression.nodes, needed, {*expression.outputs})
    following = {before: number for number, (before, _, _, _) in links.items()}
    firsts = [number for number, (before, _, _, _) in links.items() if before not in links]
    found = [_make_chain(number, links, following) for number in firsts]
    found = [chain for chain in found if _is_regular(chain, expression.nodes)]
    found.sort(key=lambda chain: -len(chain.states))
    return [chain for chain in found[:_MAX_CHAINS] if _is_independent(chain, expression.nodes, needed)]


_ChainLink = tuple[int, int, int, int]
"""For one state: the previous state, the factor, the term, and the product of the first two."""


def _find_links(
    nodes: Sequence[ExpressionNode], needed: Sequence[int], outputs: set[int]
) -> dict[int, _ChainLink]:
    users: dict[int, int] = {}
    for number in needed:
        for at in nodes[number].args:
            users[at] = users.get(at, 0) + 1
    sums = {
        number for number in needed if nodes[number].params[:1] == ("add",) and nodes[number].kind == "binary"
    }
    found: dict[int, _ChainLink] = {}
    taken: set[int] = set()
    for number in sorted(sums):
        for link in _possible_links(nodes, number):
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


def _possible_links(nodes: Sequence[ExpressionNode], number: int) -> list[_ChainLink]:
    """Every way to read a sum as a step of a recurrence."""
    one, other = nodes[number].args
    return [
        (before, factor, term, product)
        for product, term in ((one, other), (other, one))
        if nodes[product].kind == "binary" and nodes[product].params == ("multiply",)
        for factor, before in (nodes[product].args, nodes[product].args[::-1])
    ]


def _make_chain(first: int, links: Mapping[int, _ChainLink], following: Mapping[int, int]) -> RecurrenceChain:
    states = [first]
    while states[-1] in following:
        states.append(following[states[-1]])
    parts = [links[number] for number in states]
    return RecurrenceChain(
        states=states,
        factors=[factor for _, factor, _, _ in parts],
        terms=[term for _, _, term, _ in parts],
        initial=parts[0][0],
        products=frozenset(product for _, _, _, product in parts),
    )


def _is_regular(chain: RecurrenceChain, nodes: Sequence[ExpressionNode]) -> bool:
    """Whether the chain is long enough, and all iterations have the same shapes."""
    shapes = ({nodes[at].shape for at in numbers} for numbers in (chain.factors, chain.terms))
    return len(chain.states) >= MIN_CHAIN_LENGTH and all(len(each) == 1 for each in shapes)


def _is_independent(chain: RecurrenceChain, nodes: Sequence[ExpressionNode], needed: Sequence[int]) -> bool:
    """Whether no factor or term of the chain is one of its states, or depends on one."""
    inside = {*chain.states}
    depends: set[int] = set()
    for number in needed:
        own = number in inside or number in chain.products
        if not own and any(at in inside or at in depends for at in nodes[number].args):
            depends.add(number)
    return not chain.needed_operations & (depends | inside)
