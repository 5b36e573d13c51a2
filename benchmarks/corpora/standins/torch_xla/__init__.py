"""Stands in for torch_xla where kernels run on the simulator: its only device is PyTorch's CPU."""

from typing import Any


def device() -> Any:
    import torch

    return torch.device("cpu")


def sync() -> None:
    """Nothing is pending on a CPU."""
