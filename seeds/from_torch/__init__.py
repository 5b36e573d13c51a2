"""Writes the NumPy reference of a PyTorch module from its graph, as `torch.export` gives it.

`export_program.py` is a program of its own that needs torch and nothing of this project; it prints the graph
as JSON. `exported_graph.py` reads that, `operators.py` has the NumPy text of each ATen operator,
`numpy_functions.py` the functions that some of them need, and `reference_text.py` writes the file. From there
on a module is a reference like any other: the judge compares kernels with the NumPy text.
"""

from __future__ import annotations

from seeds.from_torch.exported_graph import ExportedGraph, ExportedNode, read_graph
from seeds.from_torch.reference_text import write_reference

__all__ = ["ExportedGraph", "ExportedNode", "read_graph", "write_reference"]
