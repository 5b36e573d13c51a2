"""A folder is made from documents: with a model what true quotations show, without one what form shows."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agentctl.target_building import BuiltTarget, build_target, check_target
from daemon.config import Config
from daemon.errors import DaemonError
from targets.folders.builder.documents import CHUNK_CHARS, split_document
from targets.folders.description import read_folder
from targets.registry import load_target
from tests.support.llm_server import Asked, LlmServer, Refuse, Reply, Said

MANUAL = """# The Zed core

| unit | figure |
|---|---|
| vector registers | 32 of 128 bits |

Loads from the scratchpad must be aligned to 16 bytes. Anything else is fine.

## Vector functions

```c
void zed_add(float *out, const float *a, const float *b, int n);
```

## A dot product

```c
float zed_dot(const float *a, const float *b, int n)
{
    float sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}
```

## Broken

```c
void broken(void) { undeclared_thing(; }
```

## Performance tips

- Double buffering: load the next block while the last one is computed.
"""
DUTY = "Loads from the scratchpad must be aligned to 16 bytes."
needs_gcc = pytest.mark.needs("gcc", package="gcc")


@pytest.fixture
def manual(tmp_path: Path) -> Path:
    path = tmp_path / "docs/manual.md"
    path.parent.mkdir()
    path.write_text(MANUAL)
    return path


def build(folder: Path, *documents: Path, **options: Any) -> BuiltTarget:
    told = {"model": None, "asks": False, "env": {}, "said": lambda *_: None, "config": Config(), **options}
    return asyncio.run(build_target(folder, documents, **told))


@needs_gcc
def test_without_a_model_a_folder_has_what_the_form_of_documents_shows(tmp_path: Path, manual: Path) -> None:
    folder = tmp_path / "zed"
    built = build(folder, manual.parent)
    found = read_folder(folder)
    assert built.model is None
    assert "| vector registers | 32 of 128 bits |" in found.texts["architecture"]
    assert f"- {DUTY} [manual.md, line 3 (The Zed core)]" in found.texts["rules"]
    assert "Anything else" not in found.texts["rules"]
    assert "void zed_add(float *out, const float *a, const float *b, int n)" in found.texts["interface"]
    assert "sum += a[i] * b[i];" in found.texts["examples/a_dot_product"]
    assert found.items["examples/a_dot_product"].source == "manual.md, line 17 (A dot product)"
    assert found.menu["double_buffering"].source == "manual.md, line 35 (Performance tips)"
    assert load_target(str(folder)).menu().keys() == {"parameter", "double_buffering"}


@needs_gcc
def test_an_example_that_does_not_compile_is_told_to_nobody(tmp_path: Path, manual: Path) -> None:
    folder = tmp_path / "zed"
    built = build(folder, manual)
    assert built.files.drafts == ["drafts/examples/broken.md"]
    assert "error:" in (folder / "drafts/examples/broken.md").read_text()
    assert "examples/broken" not in read_folder(folder).texts
    checked = asyncio.run(check_target(folder))
    assert (checked.compiled, checked.broken) == (["examples/a_dot_product"], {})


@needs_gcc
def test_what_a_person_edited_stays_and_other_texts_get_a_new_version(tmp_path: Path, manual: Path) -> None:
    folder = tmp_path / "zed"
    build(folder, manual)
    rules = folder / "prompts/rules.md"
    rules.write_text("# Rules\n\nMine.\n")
    (folder / "target.toml").write_text((folder / "target.toml").read_text().replace("= 10\n", "= 77\n", 1))
    assert list(asyncio.run(check_target(folder)).edited) == ["rules"]
    manual.write_text(MANUAL.replace("32 of 128", "64 of 128").replace("16 bytes", "32 bytes"))
    built = build(folder, manual)
    found = read_folder(folder)
    assert built.files.kept == ["prompts/rules.md"]
    assert rules.read_text() == "# Rules\n\nMine.\n"
    assert "32 bytes" in (folder / "drafts/rules.md").read_text()
    assert "64 of 128" in found.texts["architecture"]
    assert (found.items["architecture"].version, found.items["rules"].version) == (2, 1)
    assert found.items["interface"].version == 1
    assert found.description.rates.bandwidth_gb_s == 77


def item(kind: str, text: str, quote: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "title": text[:30], "text": text, "quote": quote, **more}


def ask_server(script: Any, folder: Path, manual: Path) -> tuple[BuiltTarget, int]:
    with LlmServer(script) as server:
        config = Config.model_validate({"daemon": {"local": {"base_url": server.openai}}})
        built = build(folder, manual, model="local/zed-reader", asks=True, config=config)
        return built, len(server.asked)


@needs_gcc
def test_a_model_s_items_are_taken_where_their_quotations_are_true(tmp_path: Path, manual: Path) -> None:
    def script(asked: Asked) -> Said:
        items = []
        if DUTY in asked.case:
            items = [
                item("rule", "Align loads to 16 bytes.", DUTY),
                item("architecture", "It has 7 cores.", "The core has 7 cores."),
            ]
        return Reply(f"Here it is:\n```json\n{json.dumps({'items': items})}\n```", input=10, output=5)

    built, asked = ask_server(script, tmp_path / "zed", manual)
    found = read_folder(tmp_path / "zed")
    assert asked == 5
    assert (built.model, built.counts, built.tokens) == ("local/zed-reader", {"rule": 1}, 75)
    assert "Align loads to 16 bytes. [manual.md, line 3 (The Zed core)]" in found.texts["rules"]
    assert "architecture" not in found.texts
    assert len(built.refused) == 1
    assert "It has 7 cores" in built.refused[0]


@needs_gcc
def test_an_answer_that_is_no_json_is_asked_for_again_once(tmp_path: Path, manual: Path) -> None:
    def script(asked: Asked) -> Said:
        if "Your last answer was wrong" in asked.case and "Vector functions" in asked.case:
            return Reply('{"items": []}')
        return Reply("{") if "Vector functions" in asked.case else Reply('{"items": [{"kind": "poem"}]}')

    built, asked = ask_server(script, tmp_path / "zed", manual)
    assert asked == 10
    assert len(built.refused) == 4
    assert all("no usable answer: items.0" in line for line in built.refused)


def test_a_model_that_never_answers_ends_it_and_writes_nothing(tmp_path: Path, manual: Path) -> None:
    with pytest.raises(DaemonError) as caught:
        ask_server(lambda _: Refuse(400, "invalid_request_error"), tmp_path / "zed", manual)
    assert caught.value.code == "no_answer"
    assert not (tmp_path / "zed").exists()


@pytest.mark.parametrize(("name", "data"), [("gone.md", None), ("picture.png", b"\x89PNG\0"), ("empty", "")])
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, data: bytes | str | None) -> None:
    path = tmp_path / name
    if data == "":
        path.mkdir()
    elif isinstance(data, bytes):
        path.write_bytes(data)
    with pytest.raises(DaemonError, match=name) as caught:
        build(tmp_path / "zed", path)
    assert caught.value.code == "bad_document"


def test_chunks_are_bounded_and_know_their_lines() -> None:
    lines = [f"word {number}" for number in range(2000)]
    text = "# One\n" + "\n".join(lines) + "\n# Two\nlast\n"
    chunks = list(split_document("long.md", text))
    assert all(len(one.text) <= CHUNK_CHARS for one in chunks)
    assert "".join(one.text for one in chunks).count("word") == 2000
    assert (chunks[-1].heading, chunks[-1].line, chunks[-1].text) == ("Two", 2003, "last")
    for one in chunks:
        assert text.splitlines()[one.line - 1] == one.text.splitlines()[0]
