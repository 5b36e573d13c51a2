"""Instructions that find the largest elements and positions, gather by index, and shuffle partitions."""

from __future__ import annotations

from nki_sim.forms import Form
from nki_sim.operators import costs, costs_search
from nki_sim.operators.model import SBUF, Argument, Operator, fixed_roles, flag, out, tensor
from nki_sim.operators.rules import search as rules
from nki_sim.operators.select import int_arg

_INDEX = ("uint16", "uint32")
_COUNTED = ("float32", "int32")


def _shuffle_roles(form: Form) -> frozenset[str]:
    """Roles that a shuffle touches in part: dst if its mask skips partitions, src unless all are taken."""
    mask, dst, src = form.param("shuffle_mask"), form["dst"].partitions, form["src"].partitions
    assert isinstance(mask, tuple)
    lanes = mask[: min(dst, rules.QUADRANT)]
    skipped = len(set(lanes) - {rules.UNMODIFIED}) < min(src, rules.QUADRANT) or dst < src
    kept = rules.UNMODIFIED in lanes
    return frozenset(role for role, partial in (("dst", kept), ("src", skipped)) if partial)


ENTRIES = (
    Operator(
        "max8", ("vector",), (out(), tensor("src")), costs.elementwise,
        (rules.free_sizes(dst=8), rules.search_size("src")),
        "the 8 largest elements of each partition, falling",
    ),
    Operator(
        "nc_find_index8", ("vector",), (out(), tensor("data"), tensor("vals")), costs.elementwise,
        (
            rules.free_sizes(dst=8, vals=8), rules.search_size("data"), rules.max_rank("vals", 3),
            rules.dtype_in("dst", *_INDEX),
        ),
        "where the 8 values first are in each partition; all ones for one that is not there",
    ),
    Operator(
        "nc_match_replace8", ("vector",),
        (
            out(), tensor("data"), tensor("vals"), Argument("imm", "float"), out("dst_idx", required=False),
        ),
        costs.elementwise,
        (
            rules.free_sizes(dst=rules.free_size("data"), vals=8, dst_idx=8),
            rules.search_size("data", least=False),
            rules.max_rank("vals", 3), rules.dtype_in("dst_idx", *_INDEX),
        ),
        "replace the first occurrence of each of 8 values, and say where they were",
    ),
    Operator(
        "topk", ("gpsimd",),
        (
            out("val_dst", SBUF), out("idx_dst", SBUF), tensor("src", SBUF), int_arg("n", required=True),
            flag("sorted"),
        ),
        costs_search.topk,
        (
            rules.free_sizes(idx_dst=rules.free_size("val_dst")), rules.whole_cores,
            rules.dtype_in("src", "bfloat16"), rules.dtype_in("val_dst", "bfloat16"),
            rules.dtype_in("idx_dst", "uint32"), rules.topk_size,
        ),
        "the largest of n elements that snake through each 16 partitions, and where they were",
        partial=fixed_roles("val_dst", "idx_dst", "src"),
    ),
    Operator(
        "nonzero_with_count", ("gpsimd",),
        (out(buffers=SBUF), tensor("src", SBUF), int_arg("index_offset", 0), int_arg("padding_val", -1)),
        costs.elementwise,
        (
            rules.since_generation(3), rules.free_sizes(dst=lambda form: form["src"].free + 1),
            rules.dtype_in("src", *_COUNTED), rules.dtype_in("dst", "int32"),
            rules.fits_int32("index_offset", "padding_val"),
        ),
        "where elements are not 0, padding and their number, in the first of each 16 partitions",
        partial=fixed_roles("dst", "src"),
    ),
    Operator(
        "local_gather", ("gpsimd",),
        (
            out(buffers=SBUF), tensor("src_buffer", SBUF), tensor("index", SBUF),
            int_arg("num_elem_per_idx", 1), int_arg("num_valid_indices"),
        ),
        costs_search.local_gather,
        (
            rules.gather_limits, rules.free_sizes(dst=rules.gathered_elements), rules.whole_cores,
            rules.equal_dtypes("dst", "src_buffer"), rules.dtype_in("index", "uint16"),
        ),
        "each 16 partitions' elements at the indices that those partitions hold",
        partial=fixed_roles("src_buffer", "index"),
    ),
    Operator(
        "nc_n_gather", ("gpsimd",), (out(buffers=SBUF), tensor("data", SBUF), tensor("indices", SBUF)),
        costs_search.nc_n_gather,
        (
            rules.free_sizes(dst=rules.free_size("indices")), rules.equal_dtypes("dst", "data"),
            rules.dtype_in("indices", "uint32"),
        ),
        "each partition's elements at the indices that it holds", partial=fixed_roles("data"),
    ),
    Operator(
        "nc_stream_shuffle", ("vector",), (out(), tensor("src"), Argument("shuffle_mask", "ints")),
        costs.elementwise, (rules.equal_dtypes("dst", "src"), rules.shuffle_mask, rules.shuffle_places),
        "partition i of each quadrant of 32 from partition shuffle_mask[i]; 255 leaves it",
        partial=_shuffle_roles,
    ),
    Operator(
        "sequence_bounds", ("gpsimd",), (out(buffers=SBUF), tensor("segment_ids", SBUF)), costs.elementwise,
        (
            rules.single_partition, rules.free_sizes(dst=lambda form: 2 * form["segment_ids"].free),
            rules.dtype_in("segment_ids", *_COUNTED), rules.dtype_in("dst", *_COUNTED),
        ),
        "first and one past the last index of the segment that each element is in",
    ),
)  # fmt: skip
