"""Small problems in NKIBench's file layout, for tests: scaled rows, with a number among the arguments."""

from __future__ import annotations

import json
from pathlib import Path

REFERENCE = """
import numpy as np

M = 256
K = 64

def get_inputs():
    x = np.random.normal(loc=0, scale=1.0, size=(M, K)).astype(np.float32)
    eps = 1e-5
    g = np.abs(np.random.normal(loc=0, scale=0.5, size=(K,))).astype(np.float32)
    return [x, eps, g]


def forward(x, eps, g):
    mean = np.sum(np.divide(np.square(x), K), axis=1, keepdims=True)
    return x / np.sqrt(mean + eps) * g


def transform_to_nki_inputs(inputs):
    tensor_inputs = []
    tensor_inputs.append(np.reshape(inputs[0], (2, 128, 64)))
    tensor_inputs.append(inputs[1])
    tensor_inputs.append(np.reshape(inputs[2], (1, 64)))

    return tensor_inputs


def transform_nki_outputs(k_res, ref):
    if not isinstance(k_res, tuple):
        k_res = (k_res,)
    refs = ref if isinstance(ref, tuple) else (ref,)
    k_outs = []
    for v, r in zip(k_res, refs):
        k_outs.append(np.reshape(v, r.shape))
    return k_outs
"""

KERNEL = """
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl


@nki.jit
def kernel(x, eps, g):
    out = nl.ndarray((2, 128, 64), dtype=x.dtype, buffer=nl.shared_hbm)
    p, f = nl.arange(128)[:, None], nl.arange(64)[None, :]
    weight = nl.load(g[nl.arange(1)[:, None], f])
    for i in nl.affine_range(2):
        tile = nl.load(x[i, p, f])
        mean = nl.sum(nl.square(tile), axis=[1]) / 64
        scaled = nl.multiply(tile, nl.rsqrt(nl.add(mean, eps)))
        nl.store(out[i, p, f], value=nl.multiply(scaled, weight.broadcast_to((128, 64))))
    return out
"""

LABEL = "scaled_rows_M256_K64"


def write(root: Path, *, summary: bool = True, reference: str = REFERENCE, kernel: str = KERNEL) -> Path:
    """Write a folder like NKIBench's with one problem; return its kernel's path."""
    files = {f"reference/{LABEL}_numpy_1.py": reference, f"kernels/{LABEL}_0.py": kernel}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if summary:
        paths = {"task": f"./reference/{LABEL}_numpy_1.py", "kernel": f"./kernels/{LABEL}_0.py"}
        case = {"values": {"M": 256, "K": 64}, "impls": [paths]}
        (root / "summary.json").write_text(json.dumps({"scaled_rows": {"seed": "", "cases": {"0": case}}}))
    return root / "kernels" / f"{LABEL}_0.py"
