"""The knob surface: from a line of mathematics to a kernel, by three knobs instead of edits of its source.

Here live the operators that a workload is written in (`operators.py`, one table entry each;
`functions.py`), the graph that a workload's function is traced to (`graph.py`, `tracing.py`), the buffers
and steps behind it (`plan.py`), the three knobs (`ir.py`), where they put everything (`placement.py`), what
may be wrong with them (`validity.py`), the loop tree (`lowering.py`, `loop_tree.py`), which is run in NumPy
(`interpret.py`) or written down as `nki.*` source (`render.py`), and how points of the space are estimated,
drawn, swept and counted (`cost.py`, `sampling.py`, `neighbours.py`, `space.py`), where one starts
(`narrowing.py`), and which to look at next (`search.py`). Graphs that a problem carries are read by
`workload_file.py`, and restructured by `variants.py` and `rewrites/`; what proposes kernels to a run is
`tuning/`. What does not live here: timing and judging. Open `ir.py` first, then `placement.py`.
"""
