"""The base of what kernels hold: tensors, tiles, indices, masks, registers.

Kernels see the documented names of such a value and no others. What the front end keeps in it besides has a
leading underscore, which the judge lets no kernel use. A kernel that asks for a name that is not there, or
for the text of a value, learns something that the documents do not say; that is noted, and the judge refuses
the kernel even if it catches the error. `print(tile)` is not: what it prints reaches people only.
"""

from __future__ import annotations

from nki_sim.refusals import DocumentedNames, note_look


class KernelValue(DocumentedNames):
    """A value of a kernel. Its text is for people: `print(tile)` shows it."""

    __slots__ = ()

    def __repr__(self) -> str:
        kind = type(self).__name__
        note_look(
            "undefined_text", f"the kernel uses the text of a {kind}, which no document defines",
            "print shapes and names; nl.device_print shows values",
        )  # fmt: skip
        return self._describe()

    def _describe(self) -> str:
        """The text of the value."""
        return f"<{type(self).__name__}>"
