"""Layouts: what is loaded, stored and transposed together, and what lies on the partitions."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod

import numpy as np
import pytest

from remote.judge.identity.expression import load_expression
from targets.base import UntranslatableError
from targets.nki.translation.delay import delay_last
from targets.nki.translation.interleave import interleave_kernel, share_copies
from targets.nki.translation.kernel import KernelWriter
from targets.nki.translation.kernel_layout import KernelLayout
from targets.nki.translation.translator import make_signature, write_kernels, write_variants
from tests.targets.nki.translation.test_kernels import assert_computes, translate


def count(source, pattern):
    return len(re.findall(pattern, source))


def first_kernel(reference, *shapes):
    """The first layout; it computes the reference."""
    spec, formula, inputs, outputs = translate(reference, shapes)
    source = write_kernels(spec, "full", formula)[0]
    assert_computes(source, inputs, outputs)
    return source


def test_a_choice_reads_its_mask_in_psum_and_replaces_what_nothing_else_needs():
    kernel = first_kernel(lambda x: np.where((x > -1.0) & (x < 0.0), 0.5 * x, x), (128, 600))
    assert count(kernel, r"dtype=nl.uint8, buffer=nl.psum") == 1
    assert count(kernel, r"tensor_copy_predicated\(.*src=a_tile.*reverse_pred=True") == 1
    assert not count(kernel, r"tensor_copy\(")


def add_up_taps(x, w):
    padded = np.pad(x, ((0, 0), (2, 2)))
    return sum(padded[:, k : k + x.shape[1]] * w[:, k : k + 1] for k in range(5))


def test_shifted_windows_are_parts_of_one_load_with_a_border():
    source = first_kernel(add_up_taps, (128, 300), (128, 5))
    assert count(source, r"dma_copy\(dst=.*src=a\b") == 1
    assert count(source, r"memset\(dst=joined") == 2  # the two edges, and not the whole tile


def add_up_batches(x, w, bias):
    return sum((x[:, :, k : k + 300] * w[:, k : k + 1] for k in range(3)), start=bias[:, None])


def write_with_row(reference, shapes, axis, **layout):
    """The kernel with an axis of the result on the partitions; it computes the reference."""
    spec, formula, inputs, outputs = translate(reference, shapes)
    expression = load_expression(formula, shapes)
    (node,) = expression.outputs
    chosen = KernelLayout(rows={node: f"o{node}_{axis}"}, **layout)
    source = KernelWriter(expression, make_signature(spec, "full"), chosen).write()
    assert_computes(source, inputs, outputs)
    return source


def test_short_tiles_of_rows_that_fill_partitions_are_slices():
    source = write_with_row(lambda x: x * np.abs(x), [(256, 2048)], 0, tile_length=512)
    assert count(source, r"\[i_row \* 128 : i_row \* 128 \+ 128, i_0 \* 512 : i_0 \* 512 \+ 512\]") == 2


@pytest.mark.parametrize("channels", [256, 300])
def test_columns_that_batches_share_are_loaded_once_for_all_rows(channels):
    shapes = [(3, channels, 302), (channels, 3), (channels,)]
    source = write_with_row(add_up_batches, shapes, 1, tile_length=512)
    loops = source[source.index("for i_0") :]
    assert count(loops, r"dma_copy\(dst=.*src=a\b") == 1
    assert count(loops, r"dma_copy\(dst=.*src=[bc]\b") == 0
    assert count(loops, "nisa.activation") == 1  # it adds the bias on the way
    assert count(loops, "nisa.scalar_tensor_tensor") == 2


@pytest.mark.parametrize(("length", "tile"), [(8192, "(128, 4, 2, 302)"), (512, "(128, 302)")])
def test_a_partition_has_several_rows_only_if_they_lie_side_by_side(length, tile):
    shapes = [(4, 256, 302), (256, 3), (256,)]
    spec, formula, inputs, outputs = translate(add_up_batches, shapes)
    expression = load_expression(formula, shapes)
    layout = KernelLayout(tile_length=length)
    source = KernelWriter(expression, make_signature(spec, "full"), layout).write()
    assert f"a_tile = nl.ndarray({tile}" in source
    assert_computes(source, inputs, outputs)


def border(x, number):
    return np.pad(x, ((0, 0), (1, 0)), constant_values=number)[:, :-1]


def test_windows_whose_borders_differ_are_loaded_apart():
    source = first_kernel(
        lambda x: border(x, 0.0) + border(x, 2.0),
        (128, 300),
    )
    assert count(source, r"dma_copy\(dst=.*src=a\b") == 2


def test_parts_of_a_row_are_stored_as_one():
    source = first_kernel(
        lambda x, w: np.concatenate([x[:, 64 * i : 64 * i + 64] @ w[i] for i in range(4)], axis=1),
        (128, 256),
        (4, 64, 64),
    )
    assert count(source, "dma_copy.*dst=out") == 1


def test_two_short_loops_share_the_partitions():
    def norm_groups(x, scale):
        groups = x.reshape(8, 16, 256)
        centred = groups - groups.mean(axis=2, keepdims=True)
        return (centred / np.sqrt((centred**2).mean(axis=2, keepdims=True) + 1e-5)) * scale[:, None]

    spec, formula, inputs, outputs = translate(norm_groups, [(8, 16, 256), (16,)])
    sources = write_kernels(spec, "full", formula)
    for source in sources:
        assert_computes(source, inputs, outputs)
    assert "a_tile = nl.ndarray((128, 256)" in sources[0]
    with_moments = [source for source in sources if "nisa.bn_aggr" in source]
    assert with_moments
    assert not any("reduce" in source for source in with_moments)


@pytest.mark.parametrize("size", [128, 384, 500, 640, 1000])
def test_chunks_of_partitions_are_one_transfer_and_leave_psum_together(size):
    source = first_kernel(lambda x: x.sum(axis=0), (size, 64))
    assert count(source, r"dma_copy\(dst=.*src=a\b") == (1 if size % 128 == 0 else 2)


@pytest.mark.parametrize("ways", [2, 3, 4, 8])
def test_iterations_side_by_side_compute_the_same(ways):
    spec, formula, inputs, outputs = translate(
        lambda q, k: np.exp(q @ np.swapaxes(k, 1, 2)), [(6, 300, 64), (6, 96, 64)]
    )
    source = interleave_kernel(write_kernels(spec, "full", formula)[0], ways)
    assert source is not None
    assert "side_1" in source
    assert_computes(source, inputs, outputs)


def test_a_kernel_without_loops_has_nothing_side_by_side():
    spec, formula, _, _ = translate(np.exp, [(64, 64)])
    assert interleave_kernel(write_kernels(spec, "full", formula)[0], 4) is None


def test_variants_near_a_layout_are_written_from_its_name():
    spec, formula, inputs, outputs = translate(
        lambda x: (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1), [(512, 640)]
    )
    usual = write_variants(spec, "full", formula)
    near = write_variants(spec, "full", formula, usual[0][1])
    assert near[0] == usual[0]
    layouts = [KernelLayout.from_name(name) for _, name in near]
    assert {layout.ways for layout in layouts} >= {1, 4}
    assert len({source for source, _ in near}) == len(near)
    for source, _ in near:
        assert_computes(source, inputs, outputs)


def test_factors_that_the_judge_cannot_name_stay_apart():
    source = first_kernel(lambda x: 0.05 * (x / (1 - 0.9**10)), (8, 8))
    assert "operand0=1.535" in source
    assert "operand1=0.05" in source


def attend(q, k, v):
    scores = q @ np.swapaxes(k, 1, 2) * 0.125
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


def decode(q, k, v):
    scores = np.einsum("hd,hsd->hs", q, k)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("hs,hsd->hd", weights, v) / weights.sum(axis=-1)[:, None]


def test_a_softmax_reads_scores_in_psum_and_divides_behind_the_product():
    source = first_kernel(attend, *[(2, 200, 64)] * 3)
    assert re.search(r"activation_reduce\(.*op=nl.exp, data=bank\[.*scale=0.125, bias=", source)
    assert not re.search(r"tensor_copy\(.*src=bank", source)
    assert count(source, r"activation\(.*data=bank_2.*scale=inverse|data=bank_2.*operand0=inverse") == 1


@pytest.mark.parametrize("keys", [300, 384, 500])
def test_scores_that_do_not_fit_in_banks_are_padded_and_stay_there(keys):
    shapes = [(2, 128, 64), (2, keys, 64), (2, keys, 64)]
    spec, formula, inputs, outputs = translate(attend, shapes)
    expression = load_expression(formula, shapes)
    for pads in (False, True):
        (node,) = expression.outputs
        layout = KernelLayout(rows={node: f"o{node}_1 with 2 of o{node}_0"}, pads_banks=pads)
        writer = KernelWriter(expression, make_signature(spec, "full"), layout)
        source = writer.write()
        assert_computes(source, inputs, outputs)
        assert writer.choices.has_uneven_banks
        assert ("bank = nl.ndarray((128, 2, 4, 128), dtype=nl.float32, buffer=nl.psum)" in source) == pads
        assert bool(count(source, r"tensor_copy\(dst=matmul")) == (not pads)


def test_a_soft_cap_is_a_scale_of_the_exponential():
    def cap(q, k, v):
        scores = 30.0 * np.tanh(q @ np.swapaxes(k, 1, 2) / 30.0)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return weights / weights.sum(axis=-1, keepdims=True) @ v

    source = first_kernel(cap, *[(2, 200, 64)] * 3)
    assert re.search(r"activation\(.*op=nl.tanh, data=bank.*, scale=0.0333", source)
    assert re.search(r"activation_reduce\(.*op=nl.exp, data=tanh.*, scale=30.0, bias=", source)


def mask_scores(hidden, scale):
    def attend_before(q, k, v):
        scores = q @ k.transpose(0, 2, 1) * scale
        scores = np.where(np.tril(np.ones(scores.shape[1:], dtype=bool)), scores, hidden)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return weights / weights.sum(axis=-1, keepdims=True) @ v

    return attend_before


@pytest.mark.parametrize(("hidden", "before"), [(-np.inf, 'float\\("-inf"\\)'), (-1e4, "-40000.0")])
def test_an_exponential_scales_behind_a_mask(hidden, before):
    source = first_kernel(mask_scores(hidden, 0.25), *[(2, 130, 32)] * 3)
    assert re.search(rf"affine_select\(.*on_false_value={before}", source)
    assert re.search(r"activation_reduce\(.*op=nl.exp, data=chosen\[.*scale=0.25, bias=", source)


def test_a_mask_whose_number_no_factor_divides_keeps_the_scale_before_it():
    scale = 0.1  # -1.7 / 0.1 * 0.1 is another number
    source = first_kernel(mask_scores(-1.7, scale), *[(2, 130, 32)] * 3)
    assert re.search(r"affine_select\(.*on_false_value=-1.7\b", source)


def test_a_maximum_that_is_a_result_keeps_its_scale():
    def with_maximum(x, y):
        scores = x @ y * 0.5
        largest = scores.max(axis=1, keepdims=True)
        return np.exp(scores - largest), largest

    first_kernel(with_maximum, (64, 32), (32, 96))


def layouts_near(reference, *shapes):
    """All layouts near the first one, by name; each computes the reference."""
    spec, formula, inputs, outputs = translate(reference, shapes)
    usual = write_variants(spec, "full", formula)
    found = {name: source for source, name in [*usual, *write_variants(spec, "full", formula, usual[0][1])]}
    for source in found.values():
        assert_computes(source, inputs, outputs)
    return found


def test_fewer_rows_in_a_partition_are_tried_with_tiles_side_by_side():
    found = [
        KernelLayout.from_name(name) for name in layouts_near(lambda x: np.exp(x).sum(axis=1), (512, 20))
    ]
    tried = {(row, layout.ways) for layout in found for row in layout.rows.values()}
    assert {row.partition(" by ")[2] for row, _ in tried if row} == {"", "2"}  # by 4 is the first layout
    assert any(row and row.endswith(" by 2") and ways == 4 for row, ways in tried)


@pytest.mark.parametrize(("rows", "inner"), [(600, 5), (512, 4), (256, 2), (4096, 32)])
def test_rows_in_a_partition_leave_no_partition_empty(rows, inner):
    kernel = first_kernel(lambda x: np.exp(x) + 1.0, (rows, 24))
    assert f"a_tile = nl.ndarray(({rows // inner}, {inner}, 24)" in kernel


def test_heads_in_a_tile_and_side_by_side_change_together():
    found = [KernelLayout.from_name(name) for name in layouts_near(attend, *[(4, 130, 64)] * 3)]
    changed = [layout for layout in found if layout.ways == 2]
    assert any(" with 2 of " in (row or "") for layout in changed for row in layout.rows.values())


def test_two_heads_share_the_rows_of_the_array():
    found = layouts_near(attend, *[(4, 130, 64)] * 3)
    stacked = [source for name, source in found.items() if " with 2 of " in name]
    assert stacked
    assert all(count(source, r"tile_position=\(64, 0\)") == 1 for source in stacked)


def test_heads_whose_scores_leave_psum_share_the_rows_of_the_array_too():
    found = layouts_near(mask_scores(-np.inf, 0.125), *[(4, 130, 64)] * 3)
    stacked = [source for name, source in found.items() if " with 2 of " in name and '"stored": []' in name]
    assert stacked
    for source in stacked:
        assert count(source, r"tensor_copy\(dst=matmul") > 0  # GpSimd, which masks them, does not read PSUM
        assert count(source, r"nc_matmul\(.*tile_position=\(64, 0\)") > 0


def test_one_key_head_is_on_top_of_itself_for_two_query_heads():
    def share(q, k):
        return np.exp(np.einsum("tghd,sgd->tghs", q.reshape(130, 2, 2, 64), k) * 0.125)

    source = first_kernel(share, (130, 4, 64), (96, 2, 64))
    assert count(source, r"tile_position=\(64, 0\)") == 1
    assert count(source, r"nc_transpose\(.*data=b_tile.*broadcast") == 1


def test_a_matrix_meets_a_vector_on_either_engine_with_and_without_a_cut():
    found = [KernelLayout.from_name(name) for name in layouts_near(decode, (4, 32), *[(4, 140, 32)] * 2)]
    assert {bool(layout.vectors) for layout in found} == {False, True}
    assert {bool(layout.stored) for layout in found} == {False, True}


def weigh_by_softmax(x, w):
    scores = x @ w
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights[:, 1:2] * x


def test_a_product_that_is_needed_whole_and_by_columns_is_summed_up_in_one_way():
    """Else a column may be larger than the largest of its row, and its exponential infinite."""
    shapes = [(128, 256), (256, 4)]
    found = [KernelLayout.from_name(name) for name in layouts_near(weigh_by_softmax, *shapes)]
    assert not any(layout.vectors for layout in found)
    spec, formula, *_ = translate(weigh_by_softmax, shapes)
    expression, signature = load_expression(formula, shapes), make_signature(spec, "full")
    written = KernelWriter(expression, signature)
    written.write()
    (product,) = written.choices.vectors.keys() & written.choices.matrices.keys()
    with pytest.raises(UntranslatableError, match="two engines"):
        KernelWriter(expression, signature, KernelLayout(vectors=(product,))).write()


def test_iterations_of_which_the_end_is_late_compute_the_same():
    spec, formula, inputs, outputs = translate(attend, [(4, 300, 64)] * 3)
    plain = write_kernels(spec, "full", formula)[0]
    sources = [
        delay_last(interleave_kernel(plain, ways) or plain, late) for ways in (1, 2) for late in (2, 4)
    ]
    assert len({*sources}) == 4
    for source in sources:
        assert source is not None
        assert_computes(source, inputs, outputs)


def test_the_loop_over_rows_is_late_inside_one_over_heads():
    spec, formula, inputs, outputs = translate(attend, [(2, 300, 64)] * 3)
    plain = write_kernels(spec, "full", formula)[0]
    together = interleave_kernel(plain, 2)
    assert together is not None  # both heads side by side: one iteration around the rows
    source = delay_last(together, 4)
    assert source is not None
    assert_computes(source, inputs, outputs)
    assert count(together, r"for i_row in nl.affine_range\(3\)") == 1
    assert count(source, r"for i_row in nl.affine_range\(2\)") == 1


def test_the_next_head_begins_before_the_last_rows_of_one_end():
    spec, formula, inputs, outputs = translate(attend, [(3, 300, 64)] * 3)
    source = delay_last(write_kernels(spec, "full", formula)[0], 4)
    assert source is not None
    assert_computes(source, inputs, outputs)
    assert count(source, r"for i_0 in nl.affine_range\(2\)") == 1
    assert source.index("src=a[i_0 + 1, 0 * 128") < source.index("dst=out_0[i_0, 2 * 128")


@pytest.mark.parametrize("shape", [(2, 256, 64), (3, 300, 64), (2, 640, 64), (5, 128, 64)])
@pytest.mark.parametrize(("late", "later"), [(5, 3), (8, 6), (7, 2)])
def test_three_stages_compute_the_reference(shape, late, later):
    spec, formula, inputs, outputs = translate(attend, [shape] * 3)
    plain = write_kernels(spec, "full", formula)[0]
    two, three = delay_last(plain, late), delay_last(plain, late, later)
    assert two is not None
    assert three is not None
    begun = [count(source[: source.index("dst=out")], r"src=a\b") for source in (two, three)]
    assert begun == [2, 3]  # iterations that have begun before the first one ends
    assert_computes(three, inputs, outputs)


def test_what_only_the_last_stage_reads_is_loaded_after_the_first_rows():
    spec, formula, inputs, outputs = translate(attend, [(2, 256, 64)] * 3)
    source = delay_last(write_kernels(spec, "full", formula)[0], 8, 6)
    assert source is not None
    assert_computes(source, inputs, outputs)
    loads = re.findall(r"src=([abc])\b", source)
    assert loads[:5] == ["b", "a", "a", "b", "c"]  # its last stage begins with the second head


def attend_by_groups(q, k, v):
    return np.stack([attend(q[:, at], k, v) for at in range(q.shape[1])], axis=1)


@pytest.mark.parametrize("rows", [256, 300, 130])
def test_what_the_last_stage_reads_is_there_in_all_loops(rows):
    spec, formula, inputs, outputs = translate(attend_by_groups, [(2, 3, rows, 64), *[(2, rows, 64)] * 2])
    plain = write_kernels(spec, "full", formula)[0]
    for late, later in [(5, 3), (8, 6)]:
        source = delay_last(plain, late, later)
        assert source is not None
        assert_computes(source, inputs, outputs)


def test_transposes_fill_a_bank_or_half_of_one_and_engines_share_copies():
    spec, formula, inputs, outputs = translate(attend, [(4, 256, 64)] * 3)
    near = [name for _, name in write_variants(spec, "full", formula) if " with 4 of " in name]
    banks, shared = {}, []
    for source, name in write_variants(spec, "full", formula, near[0]):
        layout = KernelLayout.from_name(name)
        shapes = re.findall(r"turned\w* = nl.ndarray\(\((.*?)\)", source)
        sizes = {prod(map(int, shape.split(", ")[1:])) for shape in shapes}
        banks.setdefault(layout.turned_length, set()).update(sizes)
        if layout.shared:
            assert count(source, r"tensor_copy\(.*engine=\(.*\)\[i_\w+ % 2\]\)") > 0
            shared.append(source)
        if layout.shared or layout.turned_length != 512:
            assert_computes(source, inputs, outputs)
    assert (max(banks[512]), max(banks[256])) == (512, 256)
    assert shared


def test_copies_that_are_alone_in_an_iteration_stay_on_one_engine():
    spec, formula, _, _ = translate(attend, [(4, 64, 64)] * 3)
    plain = write_kernels(spec, "full", formula)[0]
    assert "nisa.tensor_copy" in plain
    assert share_copies(plain, "vector") is None
    assert share_copies(plain, "scalar") is None


def test_a_loop_that_is_too_short_to_be_late_stays():
    spec, formula, _, _ = translate(np.exp, [(512, 64)])
    assert delay_last(write_kernels(spec, "full", formula)[0], 5) is None


def test_scaled_products_that_are_added_up_meet_in_psum():
    source = first_kernel(lambda x, w, a, b: x @ w + 2.0 * (x @ a @ b), (64, 96), (96, 80), (96, 8), (8, 80))
    assert count(source, r"nc_matmul\(dst=bank\b|nc_matmul\(dst=bank_2\b") >= 2
    assert not re.search(r"op1=nl.add", source)


def test_a_largest_number_is_reduced_row_by_row_first():
    source = first_kernel(lambda x, y: np.max((x - y) ** 2), (384, 512), (384, 512))
    assert "stored_0 = nl.ndarray((384, 1)" in source
    assert count(source, "dma_copy.*src=stored_0") == 1


def test_rows_with_a_border_between_them_are_stored_first():
    def add_neighbours(x, w):
        padded = np.pad(x, ((1, 1), (0, 0)))
        return sum(padded[i : i + 300] @ w[i] for i in range(3))

    first_kernel(add_neighbours, (300, 64), (3, 64, 48))


def attend_causally(q, k, v):
    scores = q @ np.swapaxes(k, 1, 2) * 0.125
    index = np.arange(q.shape[1])
    scores = np.where(index[:, None] >= index[None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("size", [256, 300, 384])
def test_neighbouring_rows_of_a_sum_lie_in_one_partition(size):
    spec, formula, inputs, outputs = translate(attend_causally, [(2, size, 64)] * 3)
    source = write_kernels(spec, "full", formula)[0]
    assert_computes(source, inputs, outputs)
    rows = size // -(-size // 128)
    assert count(source, rf"c_tile = nl.ndarray\(\({rows}, {size // rows}, 64\)") == 1
    assert count(source, r"dma_copy\(dst=.*src=c\b") == 1
    assert "affine_select" in source
    assert "table" not in source  # the mask is counted, not loaded


def attend_to_a_window(q, k, v):
    scores = q @ np.swapaxes(k, 1, 2) * 0.125
    rows, columns = np.arange(q.shape[1])[:, None], np.arange(q.shape[1])[None]
    scores = np.where((columns <= rows) & (columns > rows - 48), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("size", [96, 256])
def test_a_window_of_keys_is_counted_and_not_loaded(size):
    spec, formula, inputs, outputs = translate(attend_to_a_window, [(2, size, 64)] * 3)
    source = write_kernels(spec, "full", formula)[0]
    assert_computes(source, inputs, outputs)
    assert "table" not in source


def test_rows_that_need_loops_outside_share_a_partition():
    # a row has 64 * 256 elements: 4 of them have room only with the first loop outside
    spec, formula, inputs, outputs = translate(
        lambda x, y: (x * y[:, None]).sum(axis=2), [(32, 512, 64), (32, 64)]
    )
    for source, _ in write_variants(spec, "full", formula):
        assert_computes(source, inputs, outputs)


def test_layouts_that_differ_in_order_alone_compute_the_same():
    layout = KernelLayout(rows={3: "o3_0"}, vectors=(5,))
    assert replace(layout, ways=4, late=3, later=2, shared="scalar").arithmetic == layout.arithmetic
    assert replace(layout, vectors=()).arithmetic != layout.arithmetic
    assert replace(layout, rows={3: "o3_1"}).arithmetic != layout.arithmetic


@pytest.mark.parametrize("rows", [100, 300, 2048], ids=["a tile", "a short last tile", "several tiles"])
def test_what_a_number_is_added_up_from_stays_on_the_chip(rows):
    source = first_kernel(lambda x: np.sum(np.abs(x - 0.5)).reshape(1), (rows, 700))
    assert "private_hbm" not in source
    assert count(source, r"nisa.dma_copy\(dst=(?!out)") == 1


def test_two_sums_meet_on_the_chip():
    source = first_kernel(
        lambda x, y: (np.mean((x - y) ** 2) + 0.1 * np.sum(np.abs(x))).reshape(1), (640, 300), (640, 300)
    )
    assert "private_hbm" not in source


def test_a_sum_that_every_row_needs_goes_through_hbm_once():
    source = first_kernel(lambda x: x / np.sqrt(np.sum(x * x)), (640, 300))
    assert count(source, "private_hbm") == 1


def normalise_and_exponentiate(x):
    return np.exp(x / np.sqrt(np.sum(x * x, axis=1, keepdims=True) + 1e-6))


def test_vector_e_may_take_roots_of_columns():
    plain = first_kernel(normalise_and_exponentiate, (300, 200))
    powers = write_with_row(normalise_and_exponentiate, [(300, 200)], 0, has_powers=True)
    assert count(plain, r"op=nl\.rsqrt") == 1
    assert not count(powers, r"op=nl\.rsqrt")
    assert count(powers, r"op\d=nl\.power, operand\d=-0\.5") == 1


def test_roots_by_vector_e_are_among_the_layouts():
    spec, formula, _, _ = translate(normalise_and_exponentiate, [(300, 200)])
    assert any(KernelLayout.from_name(name).has_powers for _, name in write_variants(spec, "full", formula))
