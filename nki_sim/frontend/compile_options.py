"""`nki.compiler`: the configuration of one kernel that `nki.jit` takes.

The options change how the vendor's compiler works, not what a kernel computes. They are checked and kept.
`address_rotation` goes with the program, because it decides which tiles wait for one another. No source says
what the others change, so the simulator ignores them, except that a kernel called from another may not
disagree with it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum

from nki_sim.frontend.storage import fail
from nki_sim.refusals import DocumentedNames


class AddressRotation(DocumentedNames, Enum):
    """Whether the compiler may move tiles to other addresses."""

    AUTO = "auto"
    ENABLE = "enable"
    DISABLE = "disable"


@dataclass(frozen=True, kw_only=True)
class CompileConfig:
    """Options for the compiler."""

    address_rotation: AddressRotation = AddressRotation.AUTO
    non_ssa_legalization: bool = False
    dead_code_elim: bool = False
    barrier_check: bool = False
    nki_alloc_fallback: bool = True
    prefetch_auto: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class SpecializationConfig:
    """Options for tracing; the one there is lets kernels with other options be called."""

    allow_nested_config_override: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


def check_fields(config: CompileConfig | SpecializationConfig) -> None:
    """Refuse values of another type than documented."""
    for field in fields(config):
        value = getattr(config, field.name)
        wanted = AddressRotation if field.name == "address_rotation" else bool
        if not isinstance(value, wanted):
            fail(
                "argument_type", f"{type(config).__name__}: {field.name}={value!r}",
                "AddressRotation.AUTO, ENABLE or DISABLE" if wanted is AddressRotation else "True or False",
            )  # fmt: skip


@dataclass(frozen=True)
class KernelConfig:
    """What one `nki.jit` was given; None where it was given nothing."""

    compile: CompileConfig | None = None
    specialization: SpecializationConfig | None = None

    def __post_init__(self) -> None:
        pairs = (
            ("compile_config", self.compile, CompileConfig),
            ("specialization_config", self.specialization, SpecializationConfig),
        )
        for name, value, wanted in pairs:
            if value is not None and not isinstance(value, wanted):
                fail(
                    "argument_type", f"nki.jit({name}={value!r}) is not a {wanted.__name__}",
                    f"from nki.compiler import {wanted.__name__}",
                )  # fmt: skip

    @property
    def address_rotation(self) -> bool | None:
        """Whether values of a tile get addresses of their own; None leaves it to the compiler."""
        chosen = AddressRotation.AUTO if self.compile is None else self.compile.address_rotation
        return None if chosen is AddressRotation.AUTO else chosen is AddressRotation.ENABLE

    def check_nested(self, nested: KernelConfig, name: str) -> None:
        """Refuse a call of a kernel with other options, unless this kernel allows it."""
        allowed = self.specialization is not None and self.specialization.allow_nested_config_override
        if nested.compile not in {None, self.compile or CompileConfig()} and not allowed:
            fail(
                "nested_config", f"{name} has another compile_config than the kernel that calls it",
                "give both the same, or the caller SpecializationConfig(allow_nested_config_override=True)",
            )  # fmt: skip
