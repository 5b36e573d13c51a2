"""The files of a problem's folder, and their size limits."""

from __future__ import annotations

SPEC_FILE, REFERENCE_FILE, KERNEL_FILE = "problem.toml", "reference.py", "kernel.py"
WORKLOAD_FILE = "workload.json"
"""Optional: the problem in the operators of the knob surface, for each of its sizes."""
REFERENCE_FUNCTION = "reference"
MAX_FILES = 64
MAX_FILE_BYTES = 1 << 20
