"""The text of rewritten modules is what LibCST writes, to the byte."""

from __future__ import annotations

import libcst as cst
import pytest

from targets.nki.rewrites.source_writer import SourceWriter
from tests.targets.nki.rewrites.generator import draw

AWKWARD = '''\
# a module with a comment before it

import nki  # and behind a line


@decorated
def kernel(x):
    """Several
lines."""

    for i in range(4):  # head

        y = f(
            x,
              i,
        )
        if i == 0:
          z = 1  # another width
          # the end of the condition
        if i == 1:
            z = 2
        else:
            z = 3
        # the end of the loop
    for j in range(2): y = "pass"
    while y:
        pass
    # the end
    return y
# after all
'''


@pytest.mark.parametrize(
    "text",
    [
        AWKWARD,
        AWKWARD.rstrip(),
        AWKWARD.replace("    ", "\t"),
        AWKWARD.replace("\n", "\r\n"),
        "",
        "# only\n",
        "x=1",
    ],
)
def test_a_module_is_written_as_it_was_read(text: str) -> None:
    module = cst.parse_module(text)
    writer = SourceWriter(module)
    assert writer.write_module(module.body) == text
    assert writer.write_module(module.body) == text


class _Renamed(cst.CSTTransformer):
    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        del original_node
        return updated_node.with_changes(value="w") if updated_node.value == "z" else updated_node


def test_what_is_new_among_known_statements_is_written_as_libcst_writes_it() -> None:
    module = cst.parse_module(AWKWARD)
    writer = SourceWriter(module)
    writer.write_module(module.body)
    changed = module.visit(_Renamed())
    assert writer.write_module(changed.body) == changed.code != module.code


def test_a_statement_that_moves_takes_the_indentation_of_its_new_block() -> None:
    module = cst.parse_module(AWKWARD)
    writer = SourceWriter(module)
    writer.write_module(module.body)
    function = module.body[1]
    assert isinstance(function, cst.FunctionDef)
    moved = module.with_changes(body=[*module.body, *function.body.body])
    assert writer.write_module(moved.body) == moved.code


@pytest.mark.parametrize("seed", range(5))
def test_generated_kernels(seed: int) -> None:
    text = draw(seed).source
    module = cst.parse_module(text)
    assert SourceWriter(module).write_module(module.body) == text
