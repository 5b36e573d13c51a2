"""The transformations that the rewrite engine knows, by menu id. To add one: its file, and a line here."""

from __future__ import annotations

from typing import Any

from agent_core.builtin.transform import Transform
from agent_core.builtin.transforms.accumulate import Accumulate
from agent_core.builtin.transforms.array_tiles import ArrayTiles
from agent_core.builtin.transforms.balance import BalanceEngines
from agent_core.builtin.transforms.block import BlockLoop
from agent_core.builtin.transforms.buffer_scope import BufferScope
from agent_core.builtin.transforms.coalesce import Coalesce
from agent_core.builtin.transforms.dead_code import DeadCode
from agent_core.builtin.transforms.descriptors import Descriptors
from agent_core.builtin.transforms.distribute import Distribute
from agent_core.builtin.transforms.engine import Engine
from agent_core.builtin.transforms.forward import Forward
from agent_core.builtin.transforms.fuse import Fuse
from agent_core.builtin.transforms.fuse_loops import FuseLoops
from agent_core.builtin.transforms.fuse_reduction import FuseReduction
from agent_core.builtin.transforms.hoist import Hoist
from agent_core.builtin.transforms.interchange import Interchange
from agent_core.builtin.transforms.intrinsic import Intrinsic
from agent_core.builtin.transforms.peel import Peel
from agent_core.builtin.transforms.pipeline import Pipeline
from agent_core.builtin.transforms.place import Place
from agent_core.builtin.transforms.rephrase import Rephrase
from agent_core.builtin.transforms.reuse import Reuse
from agent_core.builtin.transforms.scan import Scan
from agent_core.builtin.transforms.share import Share
from agent_core.builtin.transforms.split_reduction import SplitReduction
from agent_core.builtin.transforms.stack import Stack
from agent_core.builtin.transforms.tensor_sum import TensorSum
from agent_core.builtin.transforms.tile_size import TileSize
from agent_core.builtin.transforms.transpose import Transpose
from agent_core.builtin.transforms.turned_sum import TurnedSum
from agent_core.builtin.transforms.widen import Widen

TRANSFORMS: dict[str, Transform[Any]] = {
    transform.id: transform
    for transform in (
        Hoist(),
        Widen(),
        Coalesce(),
        Distribute(),
        Pipeline(),
        BlockLoop(),
        TileSize(),
        Interchange(),
        Engine(),
        BalanceEngines(),
        Share(),
        Fuse(),
        FuseReduction(),
        SplitReduction(),
        Intrinsic(),
        Peel(),
        Stack(),
        ArrayTiles(),
        Rephrase(),
        Place(),
        Accumulate(),
        TensorSum(),
        TurnedSum(),
        Transpose(),
        Scan(),
        FuseLoops(),
        Forward(),
        Reuse(),
        DeadCode(),
        BufferScope(),
        Descriptors(),
    )
}
