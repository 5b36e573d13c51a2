"""The verbs of `agentctl`, in one table: sections of `--help`, and each verb's command and line there.

The verbs' own modules are not imported here, so that `--help` and `--version` start fast.
"""

from __future__ import annotations

from typing import NamedTuple


class VerbEntry(NamedTuple):
    """Where a verb's command is, as `MODULE:NAME` in `agentctl.verbs`, and its line in `agentctl --help`."""

    command: str
    summary: str


SECTIONS: dict[str, dict[str, VerbEntry]] = {
    "Start and steer": {
        "run": VerbEntry("run:run", "optimise a kernel, showing progress"),
        "tune": VerbEntry("tune:tune", "tune a kernel for a file with its mathematics"),
        "translate": VerbEntry("translate:translate", "write a kernel for a NumPy reference"),
        "resume": VerbEntry("run:resume", "continue a run that was interrupted or paused"),
        "submit": VerbEntry("steer:submit", "queue a run for the owner of the home"),
        "pause": VerbEntry("steer:pause", "pause a run after its work in flight"),
        "cancel": VerbEntry("steer:cancel", "end a run for good"),
        "set": VerbEntry("steer:set_settings", "change settings of a run from its next round on"),
        "approve": VerbEntry("steer:approve", "let a run continue that waits for approval"),
        "propose": VerbEntry("steer:propose", "add your own kernel to a run"),
        "fork": VerbEntry("fork:fork", "continue a run from any event as another"),
        "try": VerbEntry("try_:try_kernel", "judge one kernel without a run"),
    },
    "Look": {
        "status": VerbEntry("status:status", "show how all runs of a home stand"),
        "tail": VerbEntry("tail:tail", "show what happens, event by event"),
        "tree": VerbEntry("tree:tree", "show the kernels of a run as a tree"),
        "show": VerbEntry("show:show", "show a kernel or an event in full"),
        "why": VerbEntry("why:why", "explain a kernel in prose"),
        "diff": VerbEntry("kernels:diff", "show what changed between two kernels"),
        "best": VerbEntry("kernels:best", "print the best kernel of a run"),
        "stats": VerbEntry("stats:stats", "show statistics of runs: results, cost, time"),
        "lineage": VerbEntry("lineage:lineage", "show runs and their forks as a tree"),
        "replay": VerbEntry("lineage:replay", "rebuild a run's state from its events"),
        "rescore": VerbEntry("rescore:rescore", "rank kernels of a run by another objective"),
        "wait": VerbEntry("wait:wait", "wait until a condition holds for a run"),
        "ui": VerbEntry("ui:ui", "serve a live page for the browser"),
        "mcp": VerbEntry("mcp:mcp", "serve the home to a coding agent"),
        "report": VerbEntry("report:report", "write a report of a run as one file"),
        "export": VerbEntry("export:export", "export a run for other tools"),
    },
    "Keep the log": {
        "verify": VerbEntry("maintenance:verify", "check every hash of the log"),
        "backup": VerbEntry("maintenance:backup", "copy the log, also while it is in use"),
        "restore": VerbEntry("maintenance:restore", "restore the log from a copy"),
        "archive": VerbEntry("maintenance:archive", "write a run to a file of its own"),
        "import": VerbEntry("maintenance:import_run", "import an archived run"),
        "compact": VerbEntry("maintenance:compact", "make the log smaller"),
        "repair": VerbEntry("maintenance:repair", "save the undamaged part of a log"),
        "migrate": VerbEntry("maintenance:migrate", "migrate an older log to this version"),
    },
    "Set up": {
        "init": VerbEntry("maintenance:init", "make an empty home"),
        "doctor": VerbEntry("doctor:doctor", "check this machine, the home and the configuration"),
        "problems": VerbEntry("problems:problems", "list problems, or create your own"),
        "config": VerbEntry("config:config", "show, check or explain the configuration"),
        "prompts": VerbEntry("prompts:prompts", "show and check the prompts"),
        "target": VerbEntry("target:target", "make the folder of a target from documents, or check one"),
        "memory": VerbEntry("memory:memory", "show what later runs reuse"),
        "host": VerbEntry("host:host", "set up and check hosts that run kernels"),
        "calibrate": VerbEntry("calibrate:calibrate", "fit predictions to the device of a host"),
        "service": VerbEntry("service:service", "run agentd as a systemd service"),
        "plugin": VerbEntry("plugin:plugin", "put skills and the MCP server in place for coding agents"),
        "bench": VerbEntry("bench:bench", "benchmark this program"),
        "completion": VerbEntry("completion:completion", "write the shell's completion script"),
    },
}

VERBS: dict[str, VerbEntry] = {name: entry for verbs in SECTIONS.values() for name, entry in verbs.items()}
