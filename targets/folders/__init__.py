"""Targets that are folders: facts, a language, prompts, and a way to evaluate kernels, all in files.

`--target DIR` names one; `riscv64` is shipped. Open `description.py` first: what a folder says. Kernels are
in C, compiled and run as those of `targets.c` are (`evaluators.py`), or a command of the folder runs them
(`command_evaluator.py`). `builder/` makes a folder from documents.
"""

from __future__ import annotations

from targets.base import Target


def load(name: str) -> Target:
    """Return the target of a folder: the absolute path of one, or the name of one that is shipped.

    Raises:
        TargetFolderError: it is no folder of a target; the message says what is wrong.
    """
    from targets.folders.target import load_folder_target

    return load_folder_target(name)
