"""Handles names that a namespace lacks: documented names are refused as such, others are unknown.

Both raise AttributeErrors, so that `hasattr`, and `getattr` with a default, work.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import NoReturn

from nki_sim.errors import KernelError
from nki_sim.refusals import AbsentNameError, note_refusal

TRN3 = "it needs NeuronCore-v4 (trn3)"


class Namespace:
    """Answers requests for names that a module of kernels lacks.

    `offered` are the names it has; the error suggests the nearest one, preferably with the same first word.
    `documented` are names that it should have but lacks, with the reason or a replacement. `right_forms` says
    what to write instead of names of other frameworks and older releases: a name, or a hint.
    """

    def __init__(
        self,
        name: str,
        offered: Collection[str],
        documented: Mapping[str, str],
        right_forms: Mapping[str, str] | None = None,
    ) -> None:
        self._name = name
        self._right_forms = right_forms or {}
        self._offered = offered
        self._documented = documented

    def refuse_name(self, name: str) -> NoReturn:
        """Raise an error that says what is wrong with a name.

        Raises:
            AbsentNameError: always; Python's own lookups of special names get a plain one.
        """
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._documented:
            found = ("unsupported", f"not supported: {self._name}.{name}", self._documented[name])
        else:
            found = ("unknown_name", f"{self._name}.{name} is unknown", self._hint(name))
        note_refusal(*found)
        code, message, hint = found
        raise AbsentNameError(KernelError(code, message, hint=hint))

    def _hint(self, name: str) -> str:
        form = self._right_forms.get(name)
        if form is None:
            near = self._closest_name(name)
            form = f"{self._name}.{near}" if near else "nki-sim ops lists what is there"
        return form if " " in form else f"did you mean {form}?"

    def _closest_name(self, name: str) -> str | None:
        word = name.partition("_")[0]
        kin = [item for item in self._offered if item.partition("_")[0] == word]
        near = get_close_matches(name, kin, 1) or get_close_matches(name, self._offered, 1)
        return near[0] if near else None
