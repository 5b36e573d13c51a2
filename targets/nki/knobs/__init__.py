"""Tunes kernels by knobs: from a mathematical function to a kernel with three knobs, without editing source.

Workloads are written in operators (`operators.py`, one table entry each; `functions.py`). `graph.py` and
`tracing.py` turn a workload's function into a graph, `plan.py` adds buffers and steps, `ir.py` has the three
knobs, `placement.py` derives the place of everything, and `validity.py` reports what is wrong. `lowering.py`
makes the loop tree (`loop_tree.py`), which `interpret.py` runs in NumPy and `render.py` writes as `nki.*`
source. Points of the space are estimated, drawn, swept and counted (`cost.py`, `sampling.py`,
`neighbours.py`, `space.py`); `narrowing.py` finds a start and `search.py` the next points. `workload_file.py`
reads the graph that a problem carries; `variants.py` and `graph_rewrites/` restructure it. `tuning/` has the
proposer. Timing and judging live elsewhere. Open `ir.py` first, then `placement.py`.
"""
