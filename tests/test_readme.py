"""What the README shows of the program is what the program says; `UPDATE_SNAPSHOTS=1` writes it anew.

Its run is the first one of `docs/tour.md`, which a test of its own types: write that anew first.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def compare(mark: str, told: str) -> None:
    """Hold the README's block below a mark against what is told, or make it that."""
    block = re.compile(rf"(?<=<!-- {re.escape(mark)} -->\n```text\n).*?(?=^```$)", re.DOTALL | re.MULTILINE)
    text = README.read_text(encoding="utf-8")
    (shown,) = block.findall(text)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        README.write_text(block.sub(lambda _: told, text), encoding="utf-8")
        return
    assert shown == told


def test_the_run_is_the_first_one_of_the_tour():
    tour = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    first = tour.split("```console\n")[1].split("```")[0]
    command, _, said = first.partition("\n")
    _, _, end = said.partition("\n\n")
    assert end.startswith("Run ")
    compare("the first run of docs/tour.md", f"{command}\n...\n{end}")


def test_the_dry_run_is_what_the_configuration_above_it_costs(home):
    text = README.read_text(encoding="utf-8")
    (config,) = re.findall(r"<<'END'\n(.*?)^ *END$", text, re.DOTALL | re.MULTILINE)
    (arguments,) = re.findall(r"^ *agentctl (run --dry-run .*?) +#", text, re.MULTILINE)
    home.mkdir()
    (home / "config.toml").write_text(config)
    done = subprocess.run(
        [Path(sys.executable).with_name("agentctl"), *arguments.split(), "--home", home],
        env={"PATH": os.environ["PATH"], "ANTHROPIC_API_KEY": "none"},
        capture_output=True,
        text=True,
        check=True,
    )
    compare("the dry run of the configuration above", done.stdout)
