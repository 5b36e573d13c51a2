"""Other ways to write the loops of a kernel, as people do: all issue the same instructions.

Each takes the lines of a kernel whose loops are `for i in nl.affine_range(...)`, and rewrites the first loop
of the kernel's own body. `obfuscations` of the rewrites' tests vary names and sizes.
"""

from __future__ import annotations

import re
from collections.abc import Callable

LOOP = re.compile(r"    for (\w+) in nl\.affine_range\((.*)\):")
Obfuscation = Callable[[str, str, list[str]], list[str]]
"""From a loop's variable, its count and its body to other lines."""


def by_steps(name: str, count: str, body: list[str]) -> list[str]:
    """`range(0, n, step)`, with the index computed from it."""
    return [f"    for start in range(0, ({count}) * 96, 96):", f"        {name} = start // 96", *body]


def by_while(name: str, count: str, body: list[str]) -> list[str]:
    return [f"    {name} = 0", f"    while {name} < {count}:", *body, f"        {name} += 1"]


def by_generator(name: str, count: str, body: list[str]) -> list[str]:
    made = ["    def numbers(stop):", "        for number in range(stop):", "            yield number, None"]
    return [*made, f"    for {name}, _ in numbers({count}):", *body]


def by_enumerate(name: str, count: str, body: list[str]) -> list[str]:
    return [f"    for {name}, (_, _) in enumerate(zip(range({count}), range({count}))):", *body]


def by_helper(name: str, count: str, body: list[str]) -> list[str]:
    made = [f"    def step({name}, extra=0):", *body]
    return [*made, f"    for index in range({count}):", "        step(extra=1, *[index])"]


def by_recursion(name: str, count: str, body: list[str]) -> list[str]:
    again = [f"        if {name} + 1 < {count}:", f"            step({name} + 1)"]
    return [f"    def step({name}):", *body, *again, "    step(0)"]


def by_class(name: str, count: str, body: list[str]) -> list[str]:
    deeper = [f"    {line}" for line in body]
    made = ["    class Step:", "        def __init__(self, index):", "            self.index = index"]
    call = ["        def run(self):", f"            {name} = self.index", *deeper]
    return [*made, *call, f"    for each in [Step(index) for index in range({count})]:", "        each.run()"]


def by_two(name: str, count: str, body: list[str]) -> list[str]:
    """Unrolled by hand: two iterations, and what is left."""
    pair = [f"        {name} = 2 * half", *body, f"        {name} = 2 * half + 1", *body]
    rest = [f"    if ({count}) % 2:", f"        {name} = ({count}) - 1", *body]
    return [f"    for half in range(({count}) // 2):", *pair, *rest]


OBFUSCATIONS: tuple[Obfuscation, ...] = (
    by_steps,
    by_while,
    by_generator,
    by_enumerate,
    by_helper,
    by_recursion,
    by_class,
    by_two,
)


def obfuscate_loop(source: str, obfuscation: Obfuscation) -> str:
    """Return the source with its first loop written in another way."""
    lines = source.splitlines()
    first = next(number for number, line in enumerate(lines) if LOOP.fullmatch(line))
    found = LOOP.fullmatch(lines[first])
    assert found is not None
    end = first + 1
    while end < len(lines) and (lines[end].startswith("        ") or not lines[end].strip()):
        end += 1
    body = lines[first + 1 : end]
    return "\n".join([*lines[:first], *obfuscation(found[1], found[2], body), *lines[end:]]) + "\n"
