"""Small problems of these tests: what the built-in ones do not have."""

from __future__ import annotations

from seeds import Problem, build_problem

ROWS, COLUMNS = 256, 512
KEYS = ("dtype", "distribution")


def small_problem(name: str, inputs: str, outputs: str, reference: str, *, rel_l2: str = "2e-5") -> Problem:
    """Return a problem of one size. `inputs` and `outputs`: `name shape dtype distribution`, by `;`."""
    text = f'name = "{name}"\nformula = "{name}"\nrel_l2 = {rel_l2}\nseeds = [0, 21]\nshape_generic = false\n'
    text += f"[sizes.reduced]\nM = {ROWS}\nN = {COLUMNS}\n"
    for kind, items in (("inputs", inputs), ("outputs", outputs)):
        for item in items.split(";"):
            label, shape, *more = item.split()
            text += f'[[{kind}]]\nname = "{label}"\nshape = {shape}\n'
            text += "".join(f'{key} = "{value}"\n' for key, value in zip(KEYS, more, strict=False))
    files = {
        "problem.toml": text + "[work]\n",
        "reference.py": f"import numpy as np\n\n\n{reference}",
        "kernel.py": "",
    }
    return build_problem({path: data.encode() for path, data in files.items()})


EXTREMA = small_problem(
    "extrema",
    'x ["M","N"]',
    'high ["M",1];low ["M",1]',
    "def reference(x):\n    return x.max(axis=1, keepdims=True), x.min(axis=1, keepdims=True)\n",
)
LAYERNORM = small_problem(
    "layernorm",
    'x ["M","N"]',
    'out ["M","N"]',
    """def reference(x):
    x = x.astype(np.float64)
    apart = x - x.mean(axis=1, keepdims=True)
    return (apart / np.sqrt((apart**2).mean(axis=1, keepdims=True) + 1e-5)).astype(np.float32)
""",
)
INDICES = small_problem(
    "doubled_indices",
    'x ["M","N"] int32 integers:0:4096',
    'out ["M","N"] float32',
    "def reference(x):\n    return (2.0 * x).astype(np.float32)\n",
)

PRODUCT = small_problem(
    "loose_product",
    'a ["N","M"];b ["N","N"]',
    'out ["M","N"]',
    "def reference(a, b):\n    return (a.astype(np.float64).T @ b.astype(np.float64)).astype(np.float32)\n",
    rel_l2="1e-2",
)

HEAD = """import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    M, N = x.shape
"""

_EXTREMA = """    high = nl.ndarray((M, 1), dtype=x.dtype, buffer=nl.shared_hbm)
    low = nl.ndarray((M, 1), dtype=x.dtype, buffer=nl.shared_hbm)
    for r in range(0, M, 128):
        t = nl.ndarray((128, N), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[r : r + 128, :])
        for out, op, start in ((high, nl.maximum, HIGH), (low, nl.minimum, LOW)):
            found = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_reduce(dst=found, op=op, data=t, axis=1)
            nisa.tensor_scalar(dst=found, data=found, op0=op, operand0=start)
            nisa.dma_copy(dst=out[r : r + 128, :], src=found)
    return high, low
"""
_LAYERNORM = """    out = nl.ndarray((M, N), dtype=x.dtype, buffer=nl.shared_hbm)
    for r in range(0, M, 128):
        t = nl.ndarray((128, N), dtype=nl.float32, buffer=nl.sbuf)
        squares = nl.ndarray((128, N), dtype=nl.float32, buffer=nl.sbuf)
        mean, spread = (nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2))
        nisa.dma_copy(dst=t, src=x[r : r + 128, :])
        nisa.tensor_reduce(dst=mean, op=nl.add, data=t, axis=1)
        nisa.tensor_scalar(dst=mean, data=mean, op0=nl.multiply, operand0=1.0 / N)
STATISTICS
        nisa.activation(dst=spread, op=nl.rsqrt, data=spread)
        nisa.tensor_scalar(dst=t, data=t, op0=nl.subtract, operand0=mean, op1=nl.multiply, operand1=spread)
        nisa.dma_copy(dst=out[r : r + 128, :], src=t)
    return out
"""
_OF_SQUARES = """        nisa.tensor_tensor(dst=squares, data1=DATA, data2=DATA, op=nl.multiply)
        nisa.tensor_reduce(dst=spread, op=nl.add, data=squares, axis=1)
        nisa.tensor_scalar(
            dst=spread, data=spread, op0=nl.multiply, operand0=1.0 / N, op1=nl.add, operand1=1e-5
        )"""
_CENTRED = (
    "        nisa.tensor_scalar(dst=squares, data=t, op0=nl.subtract, operand0=mean)\n"
    + _OF_SQUARES.replace("DATA", "squares")
)
_NAIVE = f"""{_OF_SQUARES.replace("DATA", "t")}
        lost = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=lost, data1=mean, data2=mean, op=nl.multiply)
        nisa.tensor_tensor(dst=spread, data1=spread, data2=lost, op=nl.subtract)"""
_INDICES = """    out = nl.ndarray((M, N), dtype=nl.float32, buffer=nl.shared_hbm)
    for r in range(0, M, 128):
        t = nl.ndarray((128, N), dtype=nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[r : r + 128, :])
        held = nl.ndarray((128, N), dtype=nl.TYPE, buffer=nl.sbuf)
        nisa.tensor_copy(dst=held, src=t)
        u = nl.ndarray((128, N), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=u, src=held)
        nisa.tensor_scalar(dst=u, data=u, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out[r : r + 128, :], src=u)
    return out
"""


def extrema(high: float, low: float) -> str:
    """Return a kernel whose maximum starts at `high` and whose minimum starts at `low`."""
    return HEAD + _EXTREMA.replace("HIGH", repr(high)).replace("LOW", repr(low))


def layernorm(*, naive: bool) -> str:
    """Return a kernel that has the variance as E[x^2] - E[x]^2, or as E[(x - E[x])^2]."""
    return HEAD + _LAYERNORM.replace("STATISTICS", _NAIVE if naive else _CENTRED)


def indices(dtype: str) -> str:
    """Return a kernel that holds its integers in this type."""
    return HEAD + _INDICES.replace("TYPE", dtype)


_PRODUCT = (
    HEAD.replace("kernel(x)", "kernel(a, b)").replace("M, N = x.shape", "N, M = a.shape")
    + """\
    out = nl.ndarray((M, N), dtype=a.dtype, buffer=nl.shared_hbm)

    def tile(columns, dtype):
        return nl.ndarray((128, columns), dtype=dtype, buffer=nl.sbuf)

    for m in range(0, M, 128):
        acc = nl.ndarray((128, N), dtype=nl.float32, buffer=nl.psum)
        for k in range(0, N, 128):
            left, right = tile(128, nl.float32), tile(N, nl.float32)
            nisa.dma_copy(dst=left, src=a[k : k + 128, m : m + 128])
            nisa.dma_copy(dst=right, src=b[k : k + 128, :])
            left_high, right_high = tile(128, nl.bfloat16), tile(N, nl.bfloat16)
PARTS
            nisa.nc_matmul(dst=acc, stationary=left_high, moving=right_high)
        found = tile(N, nl.float32)
        nisa.tensor_copy(dst=found, src=acc)
        nisa.dma_copy(dst=out[m : m + 128, :], src=found)
    return out
"""
)
_HIGH = """            nisa.tensor_copy(dst=left_high, src=left)
            nisa.tensor_copy(dst=right_high, src=right)"""
_WIDE_ROW = f"""            if k == 0:
                nisa.nc_matmul(dst=acc, stationary=left[0:1, :], moving=right[0:1, :])
                nisa.memset(dst=left[0:1, :], value=0.0)
{_HIGH}"""
_LOW = f"""{_HIGH}
            left_low, right_low = tile(128, nl.bfloat16), tile(N, nl.bfloat16)
            nisa.tensor_tensor(dst=left_low, data1=left, data2=left_high, op=nl.subtract)
            nisa.tensor_tensor(dst=right_low, data1=right, data2=right_high, op=nl.subtract)
            nisa.nc_matmul(dst=acc, stationary=left_high, moving=right_low)
            nisa.nc_matmul(dst=acc, stationary=left_low, moving=right_high)"""


def product(way: str) -> str:
    """Return a product `in_parts`, or in bfloat16 but for `one_row` of the contraction."""
    return _PRODUCT.replace("PARTS", {"in_parts": _LOW, "one_row": _WIDE_ROW}[way])
