"""Stands in for the legacy namespace of SDK 2.27: `baremetal` compiles a kernel and then runs it on a
device."""

import json
from pathlib import Path

from stand_in_neff import make_neff


class Kernel:
    """What the decorators make of a function."""

    def __init__(self, func):
        self.func = func


def jit(func):
    return Kernel(func)


def baremetal(kernel=None, *, save_neff_name=None, save_trace_name=None, additional_compile_opt=None):
    def call(*arguments):
        names = kernel.__code__.co_varnames[: kernel.__code__.co_argcount]
        neff = make_neff(kernel, dict(zip(names, arguments, strict=False)), target="trn1", logical=1)
        like = arguments[0]
        neff["outputs"] = [["out0", list(like.shape), neff["stores"] or str(like.dtype)]]
        Path(save_neff_name).write_text(json.dumps(neff))
        raise RuntimeError("no Neuron device")

    return call
