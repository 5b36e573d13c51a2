"""Examples of each verb, for its `--help`; a test parses each of them as the command line would."""

from __future__ import annotations

from collections.abc import Mapping

HEADING = "\b\nExamples:"

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "run": (
        "agentctl run --problem silu --rounds 2",
        "agentctl run --problem ./my_problem --kernel start.py -o best.py",
        "agentctl run --dry-run",
    ),
    "translate": (
        "agentctl translate rmsnorm.py -o kernel.py",
        "agentctl translate rmsnorm.py --into rmsnorm",
    ),
    "resume": ("agentctl resume --last", "agentctl resume silu-4bc179@61 --set search.beam=6"),
    "submit": ("agentctl submit --problem rope --rounds 8",),
    "mcp": ("agentctl mcp", "agentctl mcp --agentd", "agentctl mcp --http --port 8378"),
    "plugin": (
        "agentctl plugin install --claude --project .",
        "agentctl plugin install --codex --kiro --cursor",
        "agentctl plugin install --claude --remove",
    ),
    "pause": ("agentctl pause silu-4bc179 --reason 'machine needed'",),
    "cancel": ("agentctl cancel silu-4bc179",),
    "propose": ("agentctl propose silu-4bc179 mine.py --note 'wider tiles' --wait",),
    "set": ("agentctl set silu-4bc179 search.rounds=8 cap_usd=5",),
    "approve": ("agentctl approve silu-4bc179",),
    "fork": ("agentctl fork silu-4bc179@61 --set search.beam=6",),
    "tree": ("agentctl tree silu-4bc179", "agentctl tree silu-4bc179 --kept"),
    "lineage": ("agentctl lineage",),
    "replay": ("agentctl replay silu-4bc179 --to 61",),
    "stats": ("agentctl stats", "agentctl stats silu-4bc179 --fast-at 1,1.5,2"),
    "report": ("agentctl report silu-4bc179 -o report.html", "agentctl report silu-4bc179 -o report.md"),
    "export": (
        "agentctl export silu-4bc179 --trace -o kernels.json",
        "agentctl export silu-4bc179 --layout nki-kernel-agent -o exported",
        "agentctl export silu-4bc179 --git -o kernels",
        "agentctl export silu-4bc179 --otlp http://127.0.0.1:4318",
    ),
    "status": ("agentctl status", "agentctl status silu-4bc179 --watch", "agentctl status --json"),
    "tail": (
        "agentctl tail -f",
        "agentctl tail --run silu-4bc179 --type decision,round --since '10 min'",
        "agentctl tail --after 0 --grep 'incorrect|refuted'",
    ),
    "show": (
        "agentctl show silu-4bc179 best",
        "agentctl show silu-4bc179 r1.b0.p2.k0.f0 --what plan",
        "agentctl show silu-4bc179 best --what profile",
        "agentctl show silu-4bc179 r1.b0.p2.k0.f0 --what prompt",
        "agentctl show silu-4bc179@61",
    ),
    "why": ("agentctl why silu-4bc179 best", "agentctl why silu-4bc179 r1.b0.p4.k0.f0"),
    "wait": (
        "agentctl wait silu-4bc179 --for ended",
        "agentctl wait silu-4bc179 --for 'best>1.3x' --timeout 2h",
    ),
    "best": ("agentctl best silu-4bc179 -o best.py",),
    "diff": ("agentctl diff silu-4bc179", "agentctl diff silu-4bc179 initial r1.b0.p3.k0.f0"),
    "try": ("agentctl try mine.py --problem silu", "agentctl try mine.py --problem silu --host ubuntu@trn-1"),
    "host": ("agentctl host trust ubuntu@trn-1", "agentctl host forget ubuntu@trn-1 --key"),
    "calibrate": (
        "agentctl calibrate --host ubuntu@trn-1",
        "agentctl calibrate --host ubuntu@trn-1 --name mine --kernels 40",
        "agentctl calibrate --target x86",
    ),
    "problems": (
        "agentctl problems",
        "agentctl problems new mine",
        "agentctl problems new mine --reference mine.py",
    ),
    "target": (
        "agentctl target build my-device --from manual.pdf --from include",
        "agentctl target check my-device",
    ),
    "verify": ("agentctl verify", "agentctl verify --quick"),
    "backup": ("agentctl backup monday.db",),
    "archive": ("agentctl archive silu-4bc179",),
    "compact": ("agentctl compact silu-4bc179.jsonl.gz",),
    "config": ("agentctl config show", "agentctl config keys"),
    "doctor": ("agentctl doctor", "agentctl doctor --json"),
    "completion": ("agentctl completion bash",),
}
"""The examples by verb, as you type them; ids of runs and kernels stand for your own."""


def format_examples(verb: str) -> str:
    """Return a verb's examples as text for the end of its help."""
    return "\n".join([HEADING, *(f"  {line}" for line in EXAMPLES[verb])])
