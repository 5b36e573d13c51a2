"""`lookup` finds the right part of the documentation among its first three answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_core.prompting import builtin_prompts
from agent_core.tools.lookup import has_name, search_reference

QUESTIONS = json.loads((Path(__file__).parent / "lookup_questions.json").read_text())


def finds(question: str, path: str, phrase: str) -> bool:
    found = search_reference(builtin_prompts(), "trn2", question, 3)
    return any(one.path == path and phrase in " ".join(f"{one.title} {one.text}".split()) for one in found)


def test_most_questions_are_answered_among_the_first_three():
    assert len(QUESTIONS) == 60
    missed = [question for question, path, phrase in QUESTIONS if not finds(question, path, phrase)]
    assert len(missed) <= 5, missed


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
