"""Stands in for the vendor's runtime of SDK 2.32 and later: as `spike` does, by the names and habits of
nrtpy.

Outputs are called output_0, output_1, ..., and have a type of bytes (`|V4`), as libnrt does not keep theirs.
"""

import json
import math
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from stand_in_neff import break_step


class NrtError(RuntimeError):
    pass


@dataclass
class BenchmarkResult:
    mean_ms: float
    min_ms: float
    max_ms: float
    std_dev_ms: float
    iterations: int
    warmup_iterations: int
    durations_ms: list = field(default_factory=list)


class NrtpyTensor:
    def __init__(self, array, name):
        self._array, self.name = array, name

    @classmethod
    def from_numpy(cls, array, name=None, core_id=0):
        return cls(np.ascontiguousarray(array), name)

    def numpy(self):
        return self._array


class NrtpyModel:
    def __init__(self, neff):
        self._neff, self._runs = neff, 0
        self.input_tensors_info = neff["inputs"]

    @classmethod
    def load_from_neff(cls, neff_path, name=None, core_id=0, **collectives):
        neff = json.loads(Path(neff_path).read_text())
        if break_step(neff["faults"], "load") == "names":
            neff["inputs"] = {f"{name}_": told for name, told in neff["inputs"].items()}
        if str(neff["logical"]) != os.environ.get("NEURON_LOGICAL_NC_CONFIG", "2"):
            raise NrtError("NRT Error NRT_INVALID(2): the NEFF is for another logical core size")
        if neff["refused"] == "load" or "NEURON_STAND_IN_BROKEN" in os.environ:
            raise NrtError("NRT Error NRT_FAILURE(1): Failed to load model, nrt_load failed with status 1")
        return cls(neff)

    def __call__(self, inputs, outputs=None, save_trace=False, ntff_name=None):
        if inputs.keys() != self._neff["inputs"].keys():
            raise NrtError("NRT Error NRT_INVALID(2): input names do not match")
        if break_step(self._neff["faults"], "run") == "nothing":
            return {}
        names = {name: tensor.numpy() for name, tensor in inputs.items()}
        with np.errstate(all="ignore"):
            found = eval(self._neff["computes"], {"np": np, "os": os, "signal": signal}, names)
        arrays = [np.asarray(one) for one in (found if isinstance(found, tuple) else (found,))]
        if self._neff["stores"]:
            arrays = [one.astype(self._neff["stores"]) for one in arrays]
        raw = [np.ascontiguousarray(one).view(f"V{one.dtype.itemsize}") for one in arrays]
        # The order of a mapping is not promised.
        return {f"output_{at}": NrtpyTensor(one, f"output_{at}") for at, one in reversed([*enumerate(raw)])}

    def benchmark(self, inputs, outputs=None, warmup_iter=5, benchmark_iter=5, mode="device"):
        if mode not in {"device", "host"} or benchmark_iter < 1:
            raise ValueError("benchmark: mode or benchmark_iter")
        if self._neff["refused"] == "benchmarked":
            raise NrtError("NRT Error NRT_EXEC_HW_ERR(1202): Failed to execute model, status 1202")
        odd = {"nan": math.nan, "negative": -1.0, "zero": 0.0}
        kind = break_step(self._neff["faults"], "benchmark")
        if kind == "many":
            benchmark_iter += 1
        takes = [odd[kind]] if kind in odd else self._neff["takes"]
        found = [takes[(self._runs + at) % len(takes)] for at in range(benchmark_iter)]
        self._runs += benchmark_iter
        mean = sum(found) / len(found)
        return BenchmarkResult(mean, min(found), max(found), 0.0, benchmark_iter, warmup_iter, found)
