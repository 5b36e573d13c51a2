"""Stands in for torch_neuronx, which scripts import for its side effects."""
