"""Instructions for random numbers: the generators of VectorE and GpSimd."""

from __future__ import annotations

from collections.abc import Iterator

from nki_sim.dtypes import DTYPES, V4
from nki_sim.forms import Form
from nki_sim.operators import costs
from nki_sim.operators.model import SBUF, Operator, out, scalar, tensor
from nki_sim.operators.rules import search as rules_search
from nki_sim.operators.rules import shapes as rules
from nki_sim.operators.rules.shapes import Breach
from nki_sim.operators.state import fits_state, rng_state, state_layout
from nki_sim.targets import Target

_GPSIMD_GENERATION = 3
_UNIFORM_DTYPES = (
    "float8_e4m3", "float8_e5m2", "float16", "bfloat16", "float32", "tfloat32", "int8", "int16", "int32",
    "uint8", "uint16", "uint32",
)  # fmt: skip


def gpsimd_generation(form: Form, target: Target) -> Iterator[Breach]:
    """GpSimd draws random numbers and reads and writes states from NeuronCore-v3 on."""
    if form.engine == "gpsimd" and target.generation < _GPSIMD_GENERATION:
        yield Breach(
            "generation", f"{form.op} on the gpsimd engine is for NeuronCore-v3 and later, not {target.name}",
            "dst", "NeuronCore-v3", target.name, "use the generator of the vector engine",
        )  # fmt: skip


def integer_bits(form: Form, target: Target) -> Iterator[Breach]:
    """Random bits are integers."""
    del target
    dst = form["dst"]
    if DTYPES[dst.dtype].kind == "float" or dst.dtype == "bool_":
        yield Breach(
            "rng_dtype", f"dst is {dst.dtype}, rng writes integers", "dst", "int8 to uint32", dst.dtype,
            "write uint32, then convert and scale with nisa.tensor_scalar",
        )  # fmt: skip


def dropout_types(form: Form, target: Target) -> Iterator[Breach]:
    """dst has the type of the data; probabilities for integers are float32, else any float type."""
    data, prob = form["data"], form.operand("prob")
    yield from rules.same_dtype(form, target)
    whole = DTYPES[data.dtype].kind != "float"
    if prob is not None and (prob.dtype != "float32" if whole else DTYPES[prob.dtype].kind != "float"):
        yield Breach(
            "dropout_dtype", f"prob is {prob.dtype} for data of {data.dtype}", "prob", "float32", prob.dtype,
            "use a float32 tile of probabilities",
        )  # fmt: skip


def probability_range(form: Form, target: Target) -> Iterator[Breach]:
    """A constant probability lies between 0 and 1."""
    del target
    value = form.param("prob")
    if isinstance(value, float) and not 0.0 <= value <= 1.0:
        yield Breach(
            "dropout_probability", f"prob is {value}", "prob", "0 to 1", str(value),
            "give the share of elements to drop",
        )  # fmt: skip


def one_seed(form: Form, target: Target) -> Iterator[Breach]:
    """One 32-bit value seeds all lanes."""
    del target
    seed = form["src_seeds"]
    if (seed.partitions, seed.free, seed.itemsize) != (1, 1, 4):
        found = f"{seed.partitions}x{seed.free} {seed.dtype}"
        yield Breach(
            "rng_seed", f"src_seeds is {found}, a seed is one 32-bit value", "src_seeds", "1x1 of 32 bits",
            found, "pass a [1, 1] tile of int32, uint32 or float32",
        )  # fmt: skip


def state_words(form: Form, target: Target) -> Iterator[Breach]:
    """The states of a lane: six uint32, or four times as many on VectorE."""
    item = form.operand("dst") or form["src_seeds"]
    words = state_layout("rng_state", form.engine, target.generation).width
    if (item.free, item.dtype) != (words, "uint32"):
        found = f"{item.free} {item.dtype}"
        yield Breach(
            "rng_state", f"{item.role} has {found} per partition, a lane of the {form.engine} engine "
            f"has {words} uint32", item.role, f"{words} uint32", found,
            f"declare the tile [P, {words}] of nl.uint32",
        )  # fmt: skip


def uniform_range(form: Form, target: Target) -> Iterator[Breach]:
    """Numbers are drawn between two constants, the smaller one first."""
    del target
    least, most = form.param("min"), form.param("max")
    if isinstance(least, float) and isinstance(most, float) and not least < most:
        yield Breach(
            "rng_range", f"min is {least} and max is {most}", "min", "min < max", f"{least}, {most}",
            "give the smaller one as min",
        )  # fmt: skip


ENTRIES = (
    Operator(
        "rng", ("vector", "gpsimd"), (out(), rng_state(writes=True, reads=True)), costs.elementwise,
        (gpsimd_generation, integer_bits, fits_state), "32 random bits for each element, cut to its type",
    ),
    Operator(
        "dropout", ("vector",),
        (out(), tensor("data"), scalar("prob"), rng_state(writes=True, reads=True)), costs.elementwise,
        (rules.same_shape, dropout_types, probability_range, fits_state), "zero elements with a probability",
    ),
    Operator(
        "set_rng_seed", ("vector",),
        (tensor("src_seeds"), rng_state(writes=True, reads=False, all_lanes=True)), costs.elementwise,
        (one_seed, fits_state), "seed the generator of the vector engine",
    ),
    Operator(
        "rand2", ("vector",),
        (out(), scalar("min"), scalar("max"), rng_state(writes=True, reads=True)), costs.random,
        (
            rules_search.since_generation(V4), rules.same_shape,
            rules_search.dtype_in("dst", *_UNIFORM_DTYPES), uniform_range, fits_state,
        ),
        "numbers spread evenly between min and max",
    ),
    Operator(
        "rand_set_state", ("gpsimd",),
        (tensor("src_seeds", SBUF), rng_state(writes=True, reads=False)), costs.elementwise,
        (gpsimd_generation, state_words, fits_state), "load the states of the generator",
        v4_engines=("vector",),
    ),
    Operator(
        "rand_get_state", ("gpsimd",), (out(), rng_state(writes=False, reads=True)),
        costs.elementwise, (gpsimd_generation, state_words, fits_state), "store the states of the generator",
        v4_engines=("vector",),
    ),
)  # fmt: skip
