"""`lookup`: finds what a target's pack says about names or a question, by full text.

The pack is cut into sections: rows of tables, bullets and paragraphs of its texts, whole examples,
techniques, and the rules with their codes. SQLite's FTS5 rates each word of a query by BM25, and the words
that the target says mean the same at a lower weight. A section counts the more, the more of the query's words
it has; one that is called by a name of the query comes first.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

from pydantic import Field

from agent_core.prompting import FileKind, PromptSet
from agent_core.tools.answers import ToolAnswer, ToolArguments, ToolFault, ToolOutcome
from agent_core.tools.workbench import Workbench
from state.model import FrozenModel
from targets.base import SearchWords, Technique, import_part
from targets.registry import load_target

MOST_SECTIONS = 3
MOST_SECTIONS_WITH_MORE = 8
_SHOWN = 480
"""Characters of a section in a short answer."""

_WHOLE_SECTIONS = {FileKind.EXAMPLE: "example", FileKind.MENU: "technique"}
_WORD = re.compile(r"[A-Za-z_][\w.]*|\d+")
_CODE = re.compile(r"`([^`]+)`")
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
_STOP_TEXT = """
a an and are as at be by can could do does for from get give has have how i if in into is it its me my need
not of on one only or should so than that the their them then there they this to use used using was what when
where which why will with without work would you your am about any kernel mean means many much long large may
call called inside happens go goes going am my our we does did done like just
"""
_STOP_WORDS = frozenset(_STOP_TEXT.split())
_KIND_WEIGHTS = {"rule code": 0.55, "technique": 0.75, "glossary": 0.7}
"""How much a rank counts by kind; 1 if not listed. Short texts rank too high otherwise."""
_INSERT = "INSERT INTO found(rowid, title, names, text, called) VALUES (?, ?, ?, ?, ?)"
_RANK = "SELECT rowid, -bm25(found, 2.0, 4.0, 1.0, 1.5) FROM found WHERE found MATCH ?"
"""A word counts by its weight in title, names and text, and in what people call a section's instructions."""
_REPEAT_WEIGHT = 0.6
"""How much a section counts if a better one is about the same instruction."""
_NO_SEARCH_WORDS = SearchWords()
_VERBATIM = 3.0
"""What a name with `_` or `.` adds to the rank of a section whose text has it as it stands."""
_RELATED_WEIGHT = 0.6
"""How much a word counts that only means the same as one of the query."""


class ReferenceSection(FrozenModel):
    """A piece of the pack: its kind, the file or rule that it is from, its title, its text."""

    kind: str
    path: str
    title: str
    text: str
    names: tuple[str, ...] = ()
    """What it is about: instructions, codes, techniques."""


class ReferenceIndex:
    """A full-text index of sections, in memory; it is read-only once made."""

    def __init__(self, sections: Sequence[ReferenceSection], words: SearchWords = _NO_SEARCH_WORDS) -> None:
        self._words = words
        self._sections = sections
        self._by_name: dict[str, list[int]] = {}
        self._base = sqlite3.connect(":memory:", check_same_thread=False)
        self._base.execute(
            "CREATE VIRTUAL TABLE found USING fts5(title, names, text, called, tokenize = 'porter unicode61')"
        )
        for number, one in enumerate(sections):
            called = " ".join(words.called.get(name.rpartition(".")[2], "") for name in one.names)
            row = (number, f"{one.kind}: {one.title}", " ".join(one.names), one.text, called)
            self._base.execute(_INSERT, row)
            for name in {name.lower() for full in one.names for name in (full, full.rpartition(".")[2])}:
                self._by_name.setdefault(name, []).append(number)

    def search(self, query: str, count: int) -> list[ReferenceSection]:
        """Return the sections that fit a query best; those that a name in it names come first."""
        words = [word.strip(".").lower() for word in _WORD.findall(query)]
        asked = list(dict.fromkeys(word for word in words if word not in _STOP_WORDS)) or words
        if not asked:
            return []
        named = [word for word in asked if word in self._by_name and ("_" in word or "." in word)]
        if len(asked) == 1 and asked[0] in self._by_name:
            named = asked
        order = self._rank(asked)
        first = [number for word in named for number in self._by_name[word]]
        first.sort(key=lambda number: order.index(number) if number in order else len(order))
        return [self._sections[number] for number in dict.fromkeys((*first, *order))][:count]

    def has_name(self, name: str) -> bool:
        """Return whether a section is called so."""
        return name.lower() in self._by_name

    def _rank(self, asked: Sequence[str]) -> list[int]:
        terms = dict.fromkeys(part for word in asked for part in re.split(r"[._]", word) if part)
        exact = [word for word in asked if "_" in word or "." in word]
        sums: dict[int, float] = {}
        matched: Counter[int] = Counter()
        for term in terms:
            for number, rank in self._rate_term(term).items():
                sums[number] = sums.get(number, 0.0) + rank
                matched[number] += 1

        def rate(number: int) -> float:
            one = self._sections[number]
            verbatim = sum(word in one.text.lower() for word in exact)
            share = sqrt(matched[number] / len(terms))
            return _KIND_WEIGHTS.get(one.kind, 1.0) * (share * sums[number] + _VERBATIM * verbatim)

        return self._lower_repeats({number: rate(number) for number in sums})

    def _lower_repeats(self, rates: Mapping[int, float]) -> list[int]:
        """Return sections, the best first; a further one on the same instruction makes room for others."""
        seen: set[str] = set()
        lowered: dict[int, float] = {}
        for number in sorted(rates, key=lambda number: (-rates[number], number)):
            subject = next(iter(self._sections[number].names), "")
            lowered[number] = rates[number] * (_REPEAT_WEIGHT if subject in seen else 1.0)
            seen |= {subject} - {""}
        return sorted(lowered, key=lambda number: (-lowered[number], number))

    def _rate_term(self, term: str) -> dict[int, float]:
        """Return how well each section fits one word of a query, or a word that means the same."""
        same = {word for group in self._words.groups if term in group for word in group} - {term}
        found: dict[int, float] = {}
        for word, weight in ((term, 1.0), *((word, _RELATED_WEIGHT) for word in sorted(same))):
            for number, rank in self._base.execute(_RANK, (f'"{word}"',)):
                found[number] = max(found.get(number, 0.0), weight * rank)
        return found


_EXAMPLE_OF_ANSWERS = "_example"
"""How a pack names its examples of answers; they say nothing of the target."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of a Markdown text."""

    heading: str
    text: str


def collect_sections(prompts: PromptSet, target: str) -> list[ReferenceSection]:
    """Return all sections of a target's pack, and the rules that its kernels can break."""
    found = [
        _make_section(name.partition("_of_")[0], block.path, piece)
        for name, block in prompts.pack_blocks(target).items()
        if not name.endswith(_EXAMPLE_OF_ANSWERS)
        for piece in _split_markdown(block.text)
    ]
    for one in prompts.list_sections(FileKind.API, target):
        path = f"interface/{one.name}"
        found += [
            _make_section("interface", path, piece, title=one.title) for piece in _split_markdown(one.text)
        ]
    for kind, name in _WHOLE_SECTIONS.items():
        for one in prompts.list_sections(kind, target):
            names = (one.name, *one.item.terms)
            found.append(
                ReferenceSection(
                    kind=name, path=f"{name}/{one.name}", title=one.title, text=one.text, names=names
                )
            )
    found += [_technique_section(one) for one in load_target(target).menu().values()]
    rules = load_target(target).parts.tools.rules
    for rule in import_part(rules)() if rules is not None else ():
        text = f"{rule.says}. What usually helps: {rule.fix}" if rule.fix else rule.says
        found.append(
            ReferenceSection(
                kind="rule code", path="rules", title=f"the rule {rule.code}", text=text, names=(rule.code,)
            )
        )
    return found


def _technique_section(one: Technique) -> ReferenceSection:
    relieves = ", ".join(sorted(one.bottlenecks))
    text = f"`{one.id}`: {one.description} Relieves: {relieves}."
    return ReferenceSection(kind="technique", path="menu", title=one.title, text=text, names=(one.id,))


def _make_section(kind: str, path: str, piece: _Piece, *, title: str = "") -> ReferenceSection:
    codes = [name for code in _CODE.findall(piece.text.split("; ")[0]) for name in _NAME.findall(code)[:1]]
    return ReferenceSection(
        kind=kind, path=path, title=piece.heading or title, text=piece.text, names=tuple(dict.fromkeys(codes))
    )


def _split_markdown(text: str) -> Iterator[_Piece]:
    """Yield the rows of tables, the bullets and the paragraphs of a text, each with its heading."""
    heading = ""
    for block in _blocks(text):
        if block.startswith("#"):
            heading = block.lstrip("# ").strip()
        elif block.startswith("|"):
            head, _, *rows = block.split("\n")
            yield from (_Piece(heading, _name_cells(head, row)) for row in rows)
        elif block.startswith("- "):
            yield from (
                _Piece(heading, one.strip())
                for one in re.split(r"^- ", block, flags=re.MULTILINE)
                if one.strip()
            )
        else:
            yield _Piece(heading, block)


def _name_cells(head: str, row: str) -> str:
    """Return a row of a table as text, each cell with the name of its column."""
    names, cells = ([cell.strip() for cell in line.strip("| ").split(" | ")] for line in (head, row))
    return "; ".join(f"{name}: {cell}" for name, cell in zip(names, cells, strict=False))


def _blocks(text: str) -> Iterator[str]:
    """Yield what empty lines separate; a heading stands alone, indented code belongs to what is before it."""
    kept = ""
    for block in (part for part in re.split(r"\n\s*\n", text.strip("\n")) if part.strip()):
        if block.startswith("#"):
            head, _, rest = block.partition("\n")
            yield from filter(None, (kept, head))
            kept = rest
        elif block.startswith((" ", "\t")) and kept:
            kept += "\n\n" + block
        else:
            yield from filter(None, (kept,))
            kept = block
    yield from filter(None, (kept,))


_INDEXES: dict[tuple[str, str], ReferenceIndex] = {}
"""By the version of the prompts and the target; a process sees few."""


def _load_index(prompts: PromptSet, target: str) -> ReferenceIndex:
    key = (prompts.version, target)
    if key not in _INDEXES:
        words = load_target(target).parts.tools.search_words
        told = import_part(words)() if words is not None else _NO_SEARCH_WORDS
        _INDEXES[key] = ReferenceIndex(collect_sections(prompts, target), told)
    return _INDEXES[key]


def search_reference(prompts: PromptSet, target: str, query: str, count: int) -> list[ReferenceSection]:
    """Return the sections of a target's pack that fit a query best."""
    return _load_index(prompts, target).search(query, count)


def has_name(prompts: PromptSet, target: str, name: str) -> bool:
    """Return whether a target's pack has a section of this name."""
    return _load_index(prompts, target).has_name(name)


class LookupArguments(ToolArguments):
    """Arguments of `lookup`."""

    query: str = Field(
        description="names (instructions, codes of rules, techniques), or a question in a few words"
    )


class LookupAnswer(ToolAnswer):
    """The sections found, the best first."""

    sections: tuple[ReferenceSection, ...]
    short: bool = True

    def render(self) -> str:
        """Return the sections with their titles; long ones are cut in a short answer."""
        return "\n\n".join(self._render_section(one) for one in self.sections)

    def _render_section(self, one: ReferenceSection) -> str:
        text = one.text
        if self.short and len(text) > _SHOWN:
            text = f"{text[:_SHOWN].rpartition(' ')[0]} ... (`more: true` shows all)"
        return f"[{one.kind}] {one.title}\n{text}"


async def lookup(bench: Workbench, said: LookupArguments) -> ToolOutcome:
    """Find what the documentation says."""
    count = MOST_SECTIONS_WITH_MORE if said.more else MOST_SECTIONS
    found = search_reference(bench.prompts, bench.task.target, said.query, count)
    if not found:
        names = "an instruction, a rule's code, a memory, a technique"
        raise ToolFault(
            "nothing_found", f"nothing is said about {said.query!r}", f"Ask by other words: {names}."
        )
    return ToolOutcome(LookupAnswer(sections=tuple(found), short=not said.more))
