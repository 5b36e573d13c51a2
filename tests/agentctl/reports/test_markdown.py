"""The report as Markdown: what others wrote stands in code, which it cannot end."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentctl.reports.markdown import code_block, inline_code, render_markdown


def outside(text: str) -> str:
    """What is left of Markdown without its code: blocks first, then spans, as CommonMark finds them."""
    blocks = re.sub(r"^(`{3,})[a-z]*\n.*?\n\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", "", blocks)


def test_a_report_says_what_was_found(made):
    text = render_markdown(made)
    assert text.startswith(f"# {made.run.problem} on trn2: {made.run.speedup:.2f}x as fast (predicted)\n")
    assert f"```python\n{made.best.source.rstrip()}\n```" in text
    for command in (*made.reproduction.judge, *made.reproduction.again):
        assert command in text
    for heading in ("What was optimised", "The best kernel", "The path of improvements", "What was tried"):
        assert f"\n## {heading}\n" in text


def test_what_the_best_kernel_does_in_vain_is_listed(made):
    best = replace(made.best, wasted=("reads x 4 times",))
    assert "\n- `reads x 4 times`\n" in render_markdown(replace(made, best=best))
    assert "in vain" not in render_markdown(replace(made, best=replace(made.best, wasted=())))


def test_a_latency_below_the_model_bound_is_explained(made, below_bound):
    low, note = below_bound
    assert note in render_markdown(low)
    assert "impossible" not in render_markdown(made)


def test_nothing_that_was_written_by_others_is_markup(hostile):
    text = render_markdown(hostile)
    rest = outside(text)
    for trick in ("evil.test", "@somebody", "<script", "# heading", "<!--", "<img"):
        assert trick in text
        assert trick not in rest
    assert "\u202e" not in text


@given(st.text(alphabet="`|ab\\ \n<", max_size=30))
def test_code_in_a_line_cannot_be_ended_from_inside(text):
    made = inline_code(text)
    assert "\n" not in made
    assert outside(made).strip("` ") == ""
    assert not re.search(r"(?<!\\)\|", made)


@pytest.mark.parametrize("text", ["```\n# out", "a\n````\nb", "~~~\n", ""])
def test_a_block_of_code_cannot_be_ended_from_inside(text):
    assert outside(f"{code_block(text)}\n") == "\n"
