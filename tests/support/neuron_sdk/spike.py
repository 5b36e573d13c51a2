"""Stands in for the vendor's runtime: loads what the stand-in compiler wrote, and "runs" it with NumPy.

A kernel that does not say what it computes gives zeros, and takes what the table of a hidden device says: a
JSON file of milliseconds by the digest of the kernel's text, which NEURON_STAND_IN_TIMES names.
"""

import json
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np


@dataclass
class BenchmarkResult:
    mean_ms: float
    durations_ms: list = field(default_factory=list)


class SpikeTensor:
    def __init__(self, array, name):
        self._array, self.name = array, name

    @classmethod
    def from_numpy(cls, array, name=None, core_id=0):
        return cls(np.ascontiguousarray(array), name)

    def numpy(self):
        return self._array


class SpikeModel:
    def __init__(self, neff):
        self._neff = neff
        self._runs = 0
        self._takes = neff["takes"]
        if neff["source"] is not None:
            self._takes = [json.loads(Path(os.environ["NEURON_STAND_IN_TIMES"]).read_text())[neff["source"]]]
        self.input_tensors_info = neff["inputs"]

    @classmethod
    def load_from_neff(cls, neff_path, name=None, core_id=0):
        neff = json.loads(Path(neff_path).read_text())
        if neff["refused"] == "load" or "NEURON_STAND_IN_BROKEN" in os.environ:
            raise RuntimeError("nrt_load failed with status 4")
        return cls(neff)

    def __call__(self, inputs):
        assert {name: list(tensor.numpy().shape) for name, tensor in inputs.items()} == {
            name: shape for name, (shape, _) in self._neff["inputs"].items()
        }
        names = {name: tensor.numpy() for name, tensor in inputs.items()}
        with np.errstate(all="ignore"):
            found = eval(self._neff["computes"], {"np": np, "os": os, "signal": signal}, names)
        found = found if isinstance(found, tuple) else (found,)
        return {
            name: SpikeTensor(np.asarray(array, dtype).reshape(shape), name)
            for array, (name, shape, dtype) in zip(found, self._neff["outputs"], strict=True)
        }

    def benchmark(self, inputs, outputs=None, warmup_iter=5, benchmark_iter=5, mode="device"):
        if self._neff["refused"] == "benchmarked":
            raise RuntimeError("nrt_execute failed with status 1202")
        takes = self._takes
        durations = []
        for _ in range(benchmark_iter):
            durations.append(takes[self._runs % len(takes)])
            self._runs += 1
        return BenchmarkResult(sum(durations) / len(durations), durations)
