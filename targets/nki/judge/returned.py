"""The numerics stage for a kernel that ran on a host, if its program is known too."""

from __future__ import annotations

from dataclasses import dataclass

from remote.judge import work_limits
from remote.judge.host_trials import ReturnedOutputs
from targets.nki.judge.trials import NumericsTrials, require_precision


@dataclass
class HostTrials(NumericsTrials):
    """A program whose outputs a host computed, and the pieces that it showed."""

    def run(self) -> None:
        """Judge precision, the shown pieces, then the relations between outputs, which are run here.

        Raises:
            RejectedError: the kernel is wrong.
            UnsureError: sketches cannot decide.
            BadReferenceError: the reference, or a file of it, is at fault.
            BadPiecesError: what the host showed is not what home asked for.
        """
        require_precision(self.program, mx=self.job.spec.mx)
        shown = ReturnedOutputs(self.job, self.errors)
        shown.compare()
        self.tolerance, self.by_set, self.stability = shown.tolerance, shown.by_set, shown.stability
        if self.job.references and self.job.spec.relations:
            self.check_relations(work_limits.work_limit(self.job.spec, self.job.size))
