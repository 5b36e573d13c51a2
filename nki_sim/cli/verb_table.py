"""The verbs of `nki-sim` in the order of `--help`. A new verb is a module with a `Verb`, listed here."""

from __future__ import annotations

from nki_sim.cli import compare, lists, profile, run, trace
from nki_sim.cli.verb import Verb

VERBS: dict[str, Verb] = {
    verb.name: verb
    for verb in (
        trace.VERB,
        run.VERB,
        profile.VERB,
        compare.VERB,
        lists.OPS,
        lists.RULES,
        lists.CONSTANTS,
        lists.PATH,
    )
}
