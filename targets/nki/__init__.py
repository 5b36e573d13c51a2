"""NKI, the Neuron Kernel Interface, on AWS Trainium: targets trn1, trn2 and trn3.

This folder has the language (`language.py`), the rewrite engine (`rewrites/`), the knobs (`knobs/`), the
program side of the judge (`judge/`) and the facts about the devices (`target.py`). The simulator itself is
`nki_sim`, which knows nothing of the agent. Open `target.py` first.
"""

from __future__ import annotations

from targets.base import Target


def load(name: str) -> Target:
    """Return `trn1`, `trn2` or `trn3`."""
    from targets.nki.target import TARGETS

    return TARGETS[name]
