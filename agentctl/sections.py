"""One line per verb, grouped by purpose, so that `agentctl --help` need not import the verbs."""

from __future__ import annotations

from collections.abc import Mapping

SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Start and steer": {
        "run": "optimise a kernel, showing progress",
        "tune": "tune a kernel for a file with its mathematics",
        "translate": "write a kernel for a NumPy reference",
        "resume": "continue a run that was interrupted or paused",
        "submit": "queue a run for the owner of the home",
        "pause": "pause a run after its work in flight",
        "cancel": "end a run for good",
        "set": "change settings of a run from its next round on",
        "approve": "let a run continue that waits for approval",
        "propose": "add your own kernel to a run",
        "fork": "continue a run from any event as another",
        "try": "judge one kernel without a run",
    },
    "Look": {
        "status": "show how all runs of a home stand",
        "tail": "show what happens, event by event",
        "tree": "show the kernels of a run as a tree",
        "show": "show a kernel or an event in full",
        "why": "explain a kernel in prose",
        "diff": "show what changed between two kernels",
        "best": "print the best kernel of a run",
        "stats": "show statistics of runs: results, cost, time",
        "lineage": "show runs and their forks as a tree",
        "replay": "rebuild a run's state from its events",
        "rescore": "rank kernels of a run by another objective",
        "wait": "wait until a condition holds of a run",
        "ui": "serve a live page for the browser",
        "mcp": "serve the home to a coding agent",
        "report": "write a report of a run as one file",
        "export": "export a run for other tools",
    },
    "Keep the log": {
        "verify": "check every hash of the log",
        "backup": "copy the log, also while it is in use",
        "restore": "restore the log from a copy",
        "archive": "write a run to a file of its own",
        "import": "import an archived run",
        "compact": "make the log smaller",
        "repair": "save the undamaged part of a log",
        "migrate": "migrate an older log to this version",
    },
    "Set up": {
        "init": "make an empty home",
        "doctor": "check this machine, the home and the configuration",
        "problems": "list problems, or create your own",
        "config": "show, check or explain the configuration",
        "prompts": "show and check the prompts",
        "target": "make the folder of a target from documents, or check one",
        "memory": "show what later runs reuse",
        "host": "set up and check hosts that run kernels",
        "calibrate": "fit predictions to the device of a host",
        "service": "run agentd as a systemd service",
        "bench": "benchmark this program",
        "completion": "write the shell's completion script",
    },
}
