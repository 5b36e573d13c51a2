"""The vendor's device on a host."""

from __future__ import annotations

PACKAGES = ("neuronx-cc", "nki", "nkipy", "spike", "aws-neuronx-runtime-discovery")


def probe() -> dict[str, object]:
    return {"lacking": ["no Neuron device"]}
