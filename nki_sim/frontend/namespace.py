"""Names that a namespace does not have: what the documents list is refused as such, the rest is unknown.

Both are AttributeErrors, so that `hasattr`, and `getattr` with a default, tell what is there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import NoReturn

from nki_sim.errors import KernelError

TRN3 = "it needs NeuronCore-v4 (trn3)"


class AbsentNameError(AttributeError):
    """A namespace was asked for what it does not have; inside a kernel this is the error `refusal`."""

    def __init__(self, refusal: KernelError) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


class Namespace:
    """What a module of kernels answers for names that it does not have.

    `offered` are the names it has, of which the nearest is suggested, one that begins with the same word
    where there is one; `documented` are those that it should have and does not, with the reason or what to
    use; `meant` are other words for names that it has.
    """

    def __init__(
        self,
        name: str,
        offered: Collection[str],
        documented: Mapping[str, str],
        meant: Mapping[str, str] | None = None,
    ) -> None:
        self._name = name
        self._meant = meant or {}
        self._offered = offered
        self._documented = documented

    def refuse_name(self, name: str) -> NoReturn:
        """Say what is wrong with a name.

        Raises:
            AbsentNameError: always; Python's own, silently, where it looks for its special names.
        """
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._documented:
            reason = self._documented[name]
            raise AbsentNameError(
                KernelError("unsupported", f"not supported: {self._name}.{name}", hint=reason)
            )
        near = self._closest_name(name)
        hint = f"did you mean {self._name}.{near}?" if near else "nki-sim ops lists what is there"
        raise AbsentNameError(KernelError("unknown_name", f"{self._name}.{name} is unknown", hint=hint))

    def _closest_name(self, name: str) -> str | None:
        if name in self._meant:
            return self._meant[name]
        word = name.partition("_")[0]
        kin = [item for item in self._offered if item.partition("_")[0] == word]
        near = get_close_matches(name, kin, 1) or get_close_matches(name, self._offered, 1)
        return near[0] if near else None
