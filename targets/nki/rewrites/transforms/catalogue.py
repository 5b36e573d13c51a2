"""The transformations of the rewrite engine, by menu id. To add one, write its file and add a line here."""

from __future__ import annotations

from typing import Any

from targets.nki.rewrites.transform import Transform
from targets.nki.rewrites.transforms.accumulate import Accumulate
from targets.nki.rewrites.transforms.array_tiles import ArrayTiles
from targets.nki.rewrites.transforms.balance import BalanceEngines
from targets.nki.rewrites.transforms.block import BlockLoop
from targets.nki.rewrites.transforms.buffer_scope import BufferScope
from targets.nki.rewrites.transforms.coalesce import Coalesce
from targets.nki.rewrites.transforms.cut_columns import CutColumns
from targets.nki.rewrites.transforms.dead_code import DeadCode
from targets.nki.rewrites.transforms.defer_scaling import DeferScaling
from targets.nki.rewrites.transforms.descriptors import Descriptors
from targets.nki.rewrites.transforms.distribute import Distribute
from targets.nki.rewrites.transforms.engine import ChooseEngine
from targets.nki.rewrites.transforms.exponential import Exponential
from targets.nki.rewrites.transforms.forward import Forward
from targets.nki.rewrites.transforms.fuse import Fuse
from targets.nki.rewrites.transforms.fuse_loops import FuseLoops
from targets.nki.rewrites.transforms.fuse_reduction import FuseReduction
from targets.nki.rewrites.transforms.halo import LoadHalo
from targets.nki.rewrites.transforms.hoist import Hoist
from targets.nki.rewrites.transforms.interchange import Interchange
from targets.nki.rewrites.transforms.intrinsic import Intrinsic
from targets.nki.rewrites.transforms.moments import TakeMoments
from targets.nki.rewrites.transforms.peel import Peel
from targets.nki.rewrites.transforms.pipeline import Pipeline
from targets.nki.rewrites.transforms.place import PlaceTile
from targets.nki.rewrites.transforms.quantise_once import QuantiseOnce
from targets.nki.rewrites.transforms.rephrase import Rephrase
from targets.nki.rewrites.transforms.retile import Retile
from targets.nki.rewrites.transforms.reuse import Reuse
from targets.nki.rewrites.transforms.scan import Scan
from targets.nki.rewrites.transforms.separate import Separate
from targets.nki.rewrites.transforms.share import ShareColumns
from targets.nki.rewrites.transforms.split_products import SplitProducts
from targets.nki.rewrites.transforms.split_reduction import SplitReduction
from targets.nki.rewrites.transforms.split_rows import SplitRows
from targets.nki.rewrites.transforms.stack import Stack
from targets.nki.rewrites.transforms.tensor_sum import TensorSum
from targets.nki.rewrites.transforms.tile_size import ChangeTileSize
from targets.nki.rewrites.transforms.transpose import Transpose
from targets.nki.rewrites.transforms.transposed_accumulate import TransposedAccumulate
from targets.nki.rewrites.transforms.two_pass import TwoPass
from targets.nki.rewrites.transforms.unpeel import Unpeel
from targets.nki.rewrites.transforms.widen import Widen

TRANSFORMS: dict[str, Transform[Any]] = {
    transform.id: transform
    for transform in (
        Hoist(),
        Widen(),
        Coalesce(),
        Distribute(),
        Pipeline(),
        BlockLoop(),
        ChangeTileSize(),
        Retile(),
        Separate(),
        SplitRows(),
        Interchange(),
        ChooseEngine(),
        BalanceEngines(),
        ShareColumns(),
        Fuse(),
        FuseReduction(),
        SplitReduction(),
        Intrinsic(),
        Peel(),
        Stack(),
        ArrayTiles(),
        Rephrase(),
        PlaceTile(),
        Accumulate(),
        TensorSum(),
        TransposedAccumulate(),
        Transpose(),
        Scan(),
        FuseLoops(),
        Forward(),
        Reuse(),
        DeadCode(),
        BufferScope(),
        Descriptors(),
        TakeMoments(),
        LoadHalo(),
        Exponential(),
        QuantiseOnce(),
        SplitProducts(),
        TwoPass(),
        Unpeel(),
        CutColumns(),
        DeferScaling(),
    )
}


def list_transforms(*, mx: bool, rel_l2: float = 1.0) -> tuple[Transform[Any], ...]:
    """The transformations for a problem with a tolerance; with `mx`, products may be quantised."""
    return tuple(
        transform
        for transform in TRANSFORMS.values()
        if transform.rounding <= rel_l2 and (mx or not transform.rounds_products)
    )
