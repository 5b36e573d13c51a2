"""Looking at a home loads little: what `status` and `tail` import is most of the time that they take."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.sweeps import parametrize_sweep

HEAVY = frozenset({
    "asyncio", "rich", "httpx", "httpx2", "asyncssh", "anthropic", "openai", "structlog", "libcst", "numpy",
    "ml_dtypes", "sqlite_utils", "starlette", "uvicorn", "ray", "opentelemetry", "watchdog", "ssl",
})  # fmt: skip
"""Libraries that take long to import, and that looking needs none of."""

ROOMS = frozenset({"agent_core", "stability", "remote", "seeds", "nki_sim", "prompts"})
"""Rooms that decide, judge and optimise: whoever looks does none of it."""

SCRIPT = """
import json, sys
from agentctl import main
sys.argv[1:] = json.loads(sys.argv[1])
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def loaded(*arguments: str) -> set[str]:
    """Return the modules that are loaded when a command has ended."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(arguments)], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stderr))


@parametrize_sweep(
    "command",
    [("status",), ("status", "--json"), ("tail",), ("tail", "--json", "--grep", "kept")],
    ids=["status", "status --json", "tail", "tail --json --grep kept"],
    quick=[("status",), ("tail",)],
)
def test_looking_loads_no_heavy_library_and_no_room_that_works(home, finished, command):
    modules = loaded("--home", str(home), *command)
    tops = {name.partition(".")[0] for name in modules}
    assert tops & HEAVY == set()
    assert tops & ROOMS == set()
    assert "daemon.config" not in modules  # every setting there is


def test_no_model_is_built_before_it_is_used():
    """A model's validator takes long to build; a default that is an instance of one builds it at import."""
    script = (
        "import agentctl.verbs.status, agentctl.verbs.tail\n"
        "from state.model import FrozenModel as Frozen\n"
        "def below(kind): return {kind}.union(*map(below, kind.__subclasses__()))\n"
        "print(*sorted(kind.__name__ for kind in below(Frozen) - {Frozen} if kind.__pydantic_complete__))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_daemon_and_a_run_start_without_rich():
    """It draws progress on terminals; structlog would load it for tracebacks that nobody sees."""
    script = (
        "import daemon.process_logging, daemon.main, agentctl.verbs.run, sys; print('rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
