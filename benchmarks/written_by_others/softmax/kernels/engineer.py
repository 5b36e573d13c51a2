"""As a compiler engineer writes it: a scratch allocator, operators as small functions, a table of stages."""

import functools

import nki
import nki.isa as nisa
import nki.language as nl


class Scratch:
    def __init__(self, rows):
        self.rows = rows

    def __getattr__(self, name):
        if not name.startswith("f"):
            raise AttributeError(name)
        return functools.partial(nl.ndarray, (self.rows, int(name[1:])), dtype=nl.float32, buffer=nl.sbuf)


def reduce_max(pool, data):
    found = pool.f1()
    nisa.tensor_reduce(dst=found, op=nl.maximum, data=data, axis=1, negate=True)
    return data, found


def exponentiate(pool, state):
    data, negated = state
    exps = pool.f768()
    nisa.activation(dst=exps, op=nl.exp, data=data, bias=negated)
    return exps


def normalise(pool, exps):
    total, inverse, done = pool.f1(), pool.f1(), pool.f768()
    nisa.tensor_reduce(dst=total, op=nl.add, data=exps, axis=1)
    nisa.reciprocal(dst=inverse, data=total)
    nisa.tensor_scalar(dst=done, data=exps, op0=nl.multiply, operand0=inverse)
    return done


STAGES = (reduce_max, exponentiate, normalise)


@nki.jit
def kernel(x):
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rows = 96
    pool = Scratch(rows)
    for start in reversed(range(0, x.shape[0], rows)):
        data = pool.f768()
        nisa.dma_copy(dst=data, src=x[start : start + rows, :])
        nisa.dma_copy(
            dst=y[start : start + rows, :],
            src=functools.reduce(lambda state, stage: stage(pool, state), STAGES, data),
        )
    return y
