"""One line per verb, grouped by purpose, so that `agentctl --help` need not import the verbs."""

from __future__ import annotations

from collections.abc import Mapping

SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Start and steer": {
        "run": "optimise a kernel, showing progress",
        "tune": "from a file with the mathematics to a tuned kernel",
        "resume": "carry on with a run that was interrupted or paused",
        "submit": "hand a run to whoever owns the home",
        "pause": "start nothing new in a run",
        "cancel": "end a run for good",
        "set": "change settings of a run from its next round on",
        "approve": "let a run go on that waits for a person",
        "propose": "enter a kernel of yours into a run",
        "fork": "continue a run from any event as another",
        "try": "judge one kernel without a run",
    },
    "Look": {
        "status": "all of a home on one screen",
        "tail": "what happened, and as it happens",
        "tree": "the kernels of a run, each under its parent",
        "show": "a kernel or an event, with all that it names",
        "why": "the story of a kernel in prose",
        "diff": "what changed between two kernels",
        "best": "the best kernel of a run",
        "stats": "what runs came to, cost, and took",
        "lineage": "runs and their forks",
        "replay": "a run folded anew from its events",
        "rescore": "kernels of a run by another objective",
        "wait": "until something holds of a run",
        "ui": "a live page in the browser",
        "report": "a run as one file to hand on",
        "export": "a run in a form that other tools read",
    },
    "Keep the log": {
        "verify": "prove the log",
        "backup": "copy it while it is in use",
        "restore": "put a copy back",
        "archive": "write a run to a file of its own",
        "import": "take such a file in",
        "compact": "make the log smaller",
        "repair": "save what is sound of a damaged log",
        "migrate": "bring an older log up to date",
    },
    "Set up": {
        "doctor": "whether all is there that runs need",
        "problems": "list problems, or begin one of your own",
        "config": "the configuration, and what each key means",
        "prompts": "what models are told",
        "memory": "what runs learnt for later ones",
        "host": "hosts that kernels run on",
        "service": "agentd as a systemd service",
        "bench": "benchmarks of the program itself",
        "completion": "have the shell complete verbs and runs",
    },
}
