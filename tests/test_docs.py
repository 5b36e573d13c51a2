"""What the documents say is true of the tree: links, paths, settings, exit statuses, commands."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent_core.providers.prices import price_of
from agent_core.providers.windows import UNKNOWN_WINDOW, window_of
from agentctl.app import agentctl
from daemon.config import ENV_PREFIX, FLAGS, load_config
from daemon.exits import MEANING

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
ROOMS = (
    "state",
    "stability",
    "agent_core",
    "prompts",
    "seeds",
    "remote",
    "nki_sim",
    "targets",
    "daemon",
    "agentctl",
)
FOLDERS = (*ROOMS, "docs", "tests", "benchmarks", "packaging", "deploy", ".ci")


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_links_and_paths_lead_somewhere(document):
    text = document.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert [link for link in links if not (document.parent / link).exists()] == []
    paths = [path for path in re.findall(r"`([\w./]+)`", text) if path.split("/")[0] in FOLDERS]
    slashed = [path for path in paths if "/" in path]
    assert [path for path in slashed if not (ROOT / path).exists()] == []


def test_the_index_leads_to_every_page():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {path.name for path in ROOT.glob("docs/*.md")} - {"index.md"}
    assert pages - set(re.findall(r"\]\((\w[\w.-]*\.md)", index)) == set()


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/decisions/[0-9]*.md")), ids=ids)
def test_a_decision_fits_a_page_and_says_when_to_reverse_it(page):
    lines = page.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 40
    assert lines[0].startswith(f"# {page.name[:4]}: ")
    assert any(line.startswith("**Reverse it if**") for line in lines)


def test_the_exit_statuses_are_listed():
    table = re.findall(r"^\| (\d+) \| (.+) \|$", COMMANDS, re.MULTILINE)
    assert {int(status): meaning for status, meaning in table} == MEANING


def test_the_example_of_a_configuration_is_one(home):
    (section,) = re.findall(r"^```toml\n(.*?)^```$", CONFIGURATION, re.DOTALL | re.MULTILINE)
    lines = section.splitlines()
    home.mkdir()
    (home / "config.toml").write_text("\n".join(lines))
    from_file = load_config(home, {}).config
    variables = dict(re.findall(rf"# ({ENV_PREFIX}\w+)=(\S+)", section))
    assert load_config(home / "none", variables).config == from_file
    assert set(re.findall(r"  (--\w+) ", section)) <= {*FLAGS.values(), "--set"}
    assert tomllib.loads("\n".join(lines))["run"]["problem"] == from_file.run.problem


def test_every_command_that_is_named_exists():
    for verb in sorted(set(re.findall(r"`agentctl ([a-z]+)", README + COMMANDS))):
        result = CliRunner().invoke(agentctl, [verb, "--help"], prog_name="agentctl")
        assert result.exit_code == 0, result.output
        assert f"agentctl {verb}" in result.output
    program = Path(sys.executable).with_name("agentctl")
    subprocess.run([program, "--help"], capture_output=True, check=True)


def test_the_room_map_names_every_room():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)/` \|", text, re.MULTILINE)) == {
        *ROOMS,
        "benchmarks",
        "packaging",
        "deploy",
    }


def test_models_that_documents_name_have_a_list_price_and_a_window_today():
    named = re.compile(r"[\"'`]((?:anthropic|openai|bedrock|bedrock_openai|vertex)/[\w.:-]+)(?:=\d+)?[\"'`]")
    texts = [path.read_text(encoding="utf-8") for path in DOCUMENTS if path.name != "CHANGELOG.md"]
    models = {found for text in texts for found in named.findall(text)}
    assert {"anthropic/claude-sonnet-5-5", "openai/gpt-6.1-sol"} <= models
    for model in sorted(models):
        endpoint, _, name = model.partition("/")
        assert price_of(name, endpoint) is not None, f"{model} is in no price list"
        assert window_of(name, endpoint) != UNKNOWN_WINDOW, f"the window of {model} is unknown"
