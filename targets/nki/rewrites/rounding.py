"""Estimates what rounding makes of a kernel whose float32 products are split into bfloat16 parts.

A split product is off by about 2^-16 at worst. Where one product's result goes into another one, or two are
multiplied, their errors add up like independent ones, to the square root of their number. An exponential
makes relative errors of absolute ones, so a product in its argument counts twice there, until a constant is
added: of a sigmoid, the results that count are those where the exponential is small.
"""

from __future__ import annotations

from math import sqrt

from targets.nki.rewrites.kernel_ir import Access, Kernel, Statement

SPLIT_ROUNDING = 2.0**-16
"""Relative error of a product of operands in two bfloat16 parts, where few of its terms count."""

_MULTIPLYING = frozenset({"multiply", "divide"})

Products = frozenset[int]
"""The split products that a tensor depends on, by the ids of the tensors that they are added up in."""


def estimate_rounding(kernel: Kernel) -> float:
    """Return the relative error that the kernel's split products lead to; 0.0 if it has none."""
    return SPLIT_ROUNDING * sqrt(count_split_products(kernel))


def count_split_products(kernel: Kernel) -> int:
    """Return the largest number of split products whose errors meet in one tensor."""
    found: dict[int, Products] = {}
    for _ in range(2):  # what an iteration leaves, the next one may read
        for item in kernel.operations():
            own = _products_of(item, found)
            for access in item.accesses:
                if access.writes:
                    key = access.tensor.id
                    found[key] = max(found.get(key, Products()), own, key=len)
    return max(map(len, found.values()), default=0)


def _products_of(item: Statement, found: dict[int, Products]) -> Products:
    """The products that the result of an instruction depends on: all of factors, the most of terms."""
    read = [found.get(access.tensor.id, Products()) for access in item.accesses if _is_operand(access)]
    if item.op == "nc_matmul":
        return Products().union(*read, _split_product(item))
    functions = frozenset(value for _, value in item.form.params) if item.form is not None else frozenset()
    made = Products().union(*read) if functions & _MULTIPLYING else max(read, key=len, default=Products())
    if item.op == "tensor_scalar" and "add" in functions:
        return made - _amplified(made)
    return made | _amplified(made) if "exp" in functions else made


def _amplified(products: Products) -> Products:
    """What stands for the products a second time after an exponential."""
    return Products(-abs(product) for product in products)


def _is_operand(access: Access) -> bool:
    return access.reads and not access.writes


def _split_product(item: Statement) -> Products:
    """The id of a product's sum if its operands are parts in bfloat16, added up in float32."""
    dst = item.find_access("dst")
    parts = any(_is_operand(access) and access.tensor.dtype == "bfloat16" for access in item.accesses)
    return Products({dst.tensor.id} if parts and dst is not None and dst.tensor.dtype == "float32" else ())
