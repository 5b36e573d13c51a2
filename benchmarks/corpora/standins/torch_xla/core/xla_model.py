"""Stands in for `torch_xla.core.xla_model`: the CPU as device, nothing to mark."""

from torch_xla import device as xla_device
from torch_xla import sync as mark_step

__all__ = ["mark_step", "wait_device_ops", "xla_device"]


def wait_device_ops() -> None:
    """Nothing is pending on a CPU."""
