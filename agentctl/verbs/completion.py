"""`agentctl completion`: prints the script that lets a shell complete verbs, options and runs."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from agentctl.app import Session, agentctl, common_options
from daemon import exits

COMPLETION_VARIABLE = "_AGENTCTL_COMPLETE"
"""The variable that the shell sets when it asks for completions; click derives its name from the
program's.
"""

INSTALL = {
    "bash": 'in ~/.bashrc: eval "$(agentctl completion bash)"',
    "zsh": 'in ~/.zshrc: eval "$(agentctl completion zsh)"',
    "fish": "agentctl completion fish > ~/.config/fish/completions/agentctl.fish",
}


@click.command(epilog=exits.epilog())
@click.argument("shell", type=click.Choice(tuple(INSTALL)))
@common_options
def completion(session: Session, shell: str) -> None:
    """Print the script with which a shell completes verbs, options and runs.

    It goes into the shell's start-up file, for instance as `eval "$(agentctl completion bash)"`.
    """
    found = get_completion_class(shell)
    assert found is not None
    script = found(agentctl, {}, "agentctl", COMPLETION_VARIABLE).source()
    session.emit({"shell": shell, "install": INSTALL[shell], "script": script}, script, exact=True)
