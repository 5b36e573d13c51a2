"""PyTorch modules as references, where torch is installed: the NumPy text computes what the module does."""

from __future__ import annotations

import runpy

import numpy as np
import pytest

from agentctl.torch_module import read_module
from seeds.errors import ScaffoldError

torch = pytest.importorskip("torch")

FILE = """import torch
import torch.nn.functional as F

INPUT_SPECS = {"x": ((64, 128), "float32")}


class Gated(torch.nn.Module):
    def __init__(self, hidden=96):
        super().__init__()
        self.norm = torch.nn.RMSNorm(128, eps=1e-6)
        self.gate, self.up = torch.nn.Linear(128, hidden, bias=False), torch.nn.Linear(128, hidden)
        self.down = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(hidden, 128))

    def forward(self, x):
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * F.gelu(self.up(h)))


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(128, 384)

    def forward(self, x):
        q, k, v = (part.view(64, 4, 32).transpose(0, 1) for part in self.qkv(x).chunk(3, dim=-1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).reshape(64, 128)


class InPlace(torch.nn.Module):
    def forward(self, x):
        y = x.clone()
        y.add_(1).mul_(2)
        y[:, 3] = 0.0
        return y - y.mean(-1, keepdim=True), y.var(-1)


class Convolutions(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(2, 6, 3, padding=1)
        self.net = torch.nn.Sequential(torch.nn.BatchNorm2d(6), torch.nn.SiLU(), torch.nn.MaxPool2d(2))

    def forward(self, x):
        return self.net(self.first(x.view(4, 2, 32, 32))).mean((2, 3))


class Sorts(torch.nn.Module):
    def forward(self, x):
        return torch.sort(x).values


class Wide(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x)


WIDE = Wide(128, 16)
"""


@pytest.fixture
def module_file(tmp_path):
    path = tmp_path / "layers.py"
    path.write_text(FILE)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Gated", "Attention", "InPlace", "Convolutions", "WIDE"])
def test_the_text_computes_what_the_module_does(module_file, tmp_path, name):
    file = read_module(f"{module_file}:{name}")
    found = runpy.run_path(str(module_file))[name]
    module = (found() if isinstance(found, type) else found).eval().double()
    x = torch.randn(64, 128, dtype=torch.double)
    state = {key.replace(".", "_"): value for key, value in module.state_dict().items()}
    names = {}
    exec(file.text, names)
    arrays = [(x if key == "x" else state[key]).numpy() for key in file.inputs]
    with torch.no_grad():
        expected = module(x)
    results = names["reference"](*arrays)
    pairs = zip(results, expected, strict=True) if isinstance(results, tuple) else [(results, expected)]
    for own, other in pairs:
        np.testing.assert_allclose(own, other.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "Sorts",
            r"aten.sort.default \(layers.py, line \d+: return torch.sort\(x\).values\): it has no NumPy text",
        ),
        ("Wide", r"Wide\(\) fails: .*; make a module in the file, MODULE = Wide\(\.\.\.\), and name that"),
        (
            "Missing",
            "Missing is no module of the file; modules: Gated, Attention, InPlace, Convolutions, Sorts",
        ),
    ],
)
def test_what_cannot_be_read_is_named(module_file, name, message):
    with pytest.raises(ScaffoldError, match=message):
        read_module(f"{module_file}:{name}")
