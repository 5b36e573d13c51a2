"""The stage of numerics where a host ran the kernel whose program is at hand: its precision and relations
too."""

from __future__ import annotations

from dataclasses import dataclass

from remote.judge import work_limits
from remote.judge.host_trials import ReturnedOutputs
from targets.nki.judge.trials import NumericsTrials, require_precision


@dataclass
class HostTrials(NumericsTrials):
    """A program whose outputs a host computed, and what it showed of them."""

    def run(self) -> None:
        """Judge precision, what was shown, then what must hold between outputs: here, from the program.

        Raises:
            RejectedError: the kernel is wrong.
            UnsureError: sketches do not tell.
            BadReferenceError: the reference, or a file of it, is at fault.
            BadPiecesError: what the host showed is not what it was asked for.
        """
        require_precision(self.program)
        shown = ReturnedOutputs(self.job, self.errors)
        shown.compare()
        self.tolerance, self.by_set = shown.tolerance, shown.by_set
        if self.job.references and self.job.spec.relations:
            self.check_relations(work_limits.work_limit(self.job.spec, self.job.size))
