"""`lookup` finds the right part of the documentation among its first three answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_core.prompting import builtin_prompts
from agent_core.tools.lookup import (
    ReferenceIndex,
    ReferenceSection,
    collect_sections,
    has_name,
    search_reference,
)
from targets.base import SearchWords

Places = list[list[str]]
"""The sections that answer a question: a path, and a phrase of the text."""

QUESTIONS = {
    name: json.loads((Path(__file__).parent / f"lookup_{name}.json").read_text())
    for name in ("questions", "engineers", "fresh")
}
"""`engineers` were written before their answers were seen; words were then added, for all subjects, until
most were found. `fresh` were written after that, and nothing was changed for them."""


def finds(question: str, places: Places) -> bool:
    found = search_reference(builtin_prompts(), "trn2", question, 3)
    texts = [(one.path, " ".join(f"{one.title} {one.text}".split())) for one in found]
    return any(path == of and phrase in text for of, phrase in places for path, text in texts)


@pytest.mark.parametrize(
    ("name", "count", "least"), [("questions", 60, 55), ("engineers", 60, 55), ("fresh", 20, 17)]
)
def test_most_questions_are_answered_among_the_first_three(name, count, least):
    questions = QUESTIONS[name]
    missed = [question for question, places in questions if not finds(question, places)]
    print(f"{name}: {len(questions) - len(missed)} of {len(questions)}")
    assert len(questions) == count
    assert count - len(missed) >= least, missed


@pytest.mark.parametrize("name", QUESTIONS)
def test_each_answer_is_in_the_documentation(name):
    """Otherwise a question could not be answered at all, and would count as one that is hard."""
    there = [
        (one.path, " ".join(f"{one.title} {one.text}".split()))
        for one in collect_sections(builtin_prompts(), "trn2")
    ]
    for question, places in QUESTIONS[name]:
        for of, phrase in places:
            assert any(path == of and phrase in text for path, text in there), (question, of, phrase)


def test_a_word_that_means_the_same_finds_a_text_and_one_of_the_text_itself_comes_first():
    sections = [
        ReferenceSection(kind="rule", path=path, title="", text=text)
        for path, text in (("a", "casts a tile"), ("b", "converts a tile"), ("c", "moves a tile"))
    ]
    words = SearchWords((frozenset({"casts", "converts", "astype"}),))
    assert [one.path for one in ReferenceIndex(sections, words).search("converts", 3)] == ["b", "a"]
    assert {one.path for one in ReferenceIndex(sections, words).search("astype", 3)} == {"a", "b"}
    assert ReferenceIndex(sections).search("astype", 3) == []


@pytest.mark.parametrize("name", ["nc_matmul", "nisa.dma_copy", "access_rank", "widen_transfer"])
def test_a_name_finds_the_section_that_it_names(name):
    (first, *_) = search_reference(builtin_prompts(), "trn2", name, 3)
    assert name.rpartition(".")[2] in {one.rpartition(".")[2] for one in first.names}
    assert has_name(builtin_prompts(), "trn2", name)


@pytest.mark.parametrize("query", ["", "the", '"unbalanced OR (', "* NEAR -", "qwertyuiop"])
def test_no_query_breaks_the_index(query):
    assert search_reference(builtin_prompts(), "trn2", query, 3) is not None


def test_targets_have_documentation_of_their_own():
    first = search_reference(builtin_prompts(), "trn1", "clock of the Vector engine", 3)
    assert {one.path for one in first} & {"trn1/architecture.md"}
    assert not {one.path for one in first} & {"trn2/architecture.md"}
