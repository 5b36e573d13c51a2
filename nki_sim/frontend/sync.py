"""Functions with which the two cores of a launch synchronise."""

from __future__ import annotations

from typing import Any

from nki_sim.frontend.argument_values import dma_engine, engine
from nki_sim.frontend.context import current_recorder
from nki_sim.frontend.recorder import Recorder
from nki_sim.frontend.storage import fail
from nki_sim.frontend.tensor import Tensor

_SENDRECV = dma_engine
_BARRIER = engine


def sendrecv(  # noqa: PLR0917  the documented order
    src: Tensor,
    dst: Tensor,
    send_to_rank: int,
    recv_from_rank: int,
    pipe_id: int,
    dma_engine: dma_engine = dma_engine.dma,
    name: str | None = None,
) -> None:
    """Send `src` to the other core's `dst`, and receive its `src` into this `dst`."""
    del name
    recorder = _two_core_recorder("sendrecv")
    other = 1 - recorder.core
    if (send_to_rank, recv_from_rank) != (other, other):
        fail(
            "sendrecv_rank",
            f"core {recorder.core} sends to {send_to_rank} and receives from {recv_from_rank}",
            f"two cores exchange: on core {recorder.core} both ranks are {other}",
        )  # fmt: skip
    if any(not isinstance(tile, Tensor) or tile._lookup is not None for tile in (src, dst)):
        fail("argument_type", "nisa.sendrecv moves tiles in SBUF, at addresses known while tracing")
    if src._storage.id == dst._storage.id and _views_overlap(src, dst):
        fail(
            "sendrecv_overlap",
            f"nisa.sendrecv sends and receives in one part of {src.name} at the same time",
            "receive into a tile, or a part, of its own",
        )  # fmt: skip
    if not isinstance(dma_engine, _SENDRECV):
        fail(
            "argument_type", f"nisa.sendrecv: dma_engine={dma_engine!r}", "nisa.dma_engine.dma or gpsimd_dma"
        )
    issuer = engine.gpsimd if dma_engine is _SENDRECV.gpsimd_dma else engine.dma
    recorder.synchronise("sendrecv", (_check_pipe_id(pipe_id),), engine=issuer, src=src, dst=dst)


def core_barrier(data: Tensor, cores: Any, engine: engine = engine.gpsimd, name: str | None = None) -> None:
    """Wait until the other core is here too, so that what both wrote to `data` may be read.

    This is meant for tensors in shared HBM. Like the vendor's compiler, it also accepts a core's own tile.
    """
    del name
    recorder = _two_core_recorder("core_barrier")
    if not isinstance(data, Tensor):
        fail("argument_type", f"nisa.core_barrier: data={data!r}", "a tensor in shared HBM")
    if not isinstance(cores, tuple | list) or tuple(cores) != (0, 1):
        fail("core_barrier_cores", f"nisa.core_barrier: cores={cores!r}", "only (0, 1) is there")
    if not isinstance(engine, _BARRIER):
        fail("argument_type", f"nisa.core_barrier: engine={engine!r}", "one of nisa.engine")
    recorder.synchronise("core_barrier", (), engine=engine)


def _views_overlap(one: Tensor, other: Tensor) -> bool:
    """Whether the bounding boxes of two views of a tile overlap."""
    (top, bottom, left, right), (start, end, first, last) = _bounding_box(one), _bounding_box(other)
    return top < end and start < bottom and left < last and first < right


def _bounding_box(view: Tensor) -> tuple[int, int, int, int]:
    """First and one past the last partition, and element of each partition, that a view touches."""
    row, column = divmod(view._offset, view._storage.row)
    reach = [step * (count - 1) for step, count in view._dims[1:]]
    low, high = sum(step for step in reach if step < 0), sum(step for step in reach if step > 0)
    return row, row + view.shape[0], column + low, column + high + 1


def _check_pipe_id(value: Any) -> int:
    if type(value) is not int:
        fail("argument_type", f"nisa.sendrecv: pipe_id={value!r} is no integer")
    return value


def _two_core_recorder(what: str) -> Recorder:
    """Return the recorder of a launch on two cores; refuses other launches."""
    recorder = current_recorder()
    if recorder.grid != (2,):
        fail(
            "lnc", f"nisa.{what} needs a launch on two cores",
            "launch with kernel[2](...), and guard it with nl.num_programs() > 1",
        )  # fmt: skip
    return recorder
