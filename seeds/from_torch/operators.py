"""The NumPy text of each ATen operator, by its name or by its name and overload.

A writer gets the call's result (its shape and type), then the arguments as the operator's schema has them:
operands, numbers, lists. What it returns is one expression. A function of `numpy_functions.py` is called by
its name, and copied into the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any


class UnwritableError(Exception):
    """An operator with these arguments has no NumPy text; the message says why."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand as a reference names it, with the shape and the type of its tensor if it is one."""

    text: str
    shape: tuple[int, ...] = ()
    dtype: str = "float32"

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


Writer = Callable[..., str]

_UNARY = {
    "abs": "abs", "neg": "negative", "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log",
    "log1p": "log1p", "log2": "log2", "log10": "log10", "sqrt": "sqrt", "tanh": "tanh", "sin": "sin",
    "cos": "cos", "sign": "sign", "floor": "floor", "ceil": "ceil", "round": "rint", "trunc": "trunc",
    "atan": "arctan", "sinh": "sinh", "cosh": "cosh", "square": "square", "logical_not": "logical_not",
    "bitwise_not": "logical_not", "reciprocal": "reciprocal",
}  # fmt: skip
"""Operators of one tensor that NumPy has too."""

_BINARY = {
    "mul": "{} * {}", "eq": "{} == {}", "ne": "{} != {}", "lt": "{} < {}", "le": "{} <= {}", "gt": "{} > {}",
    "ge": "{} >= {}", "maximum": "np.maximum({}, {})", "minimum": "np.minimum({}, {})",
    "pow": "np.power({}, {})", "remainder": "np.mod({}, {})", "fmod": "np.fmod({}, {})",
    "atan2": "np.arctan2({}, {})", "logical_and": "np.logical_and({}, {})",
    "logical_or": "np.logical_or({}, {})", "logical_xor": "np.logical_xor({}, {})",
    "bitwise_and": "{} & {}", "bitwise_or": "{} | {}", "matmul": "{} @ {}", "mm": "{} @ {}",
    "bmm": "{} @ {}", "mv": "{} @ {}", "dot": "{} @ {}", "outer": "np.outer({}, {})",
}  # fmt: skip

_SAME = (
    "clone", "contiguous", "alias", "detach", "dropout", "_to_copy", "to", "type_as", "lift_fresh_copy",
    "feature_dropout", "alpha_dropout", "native_dropout",
)  # fmt: skip
"""Operators that change no number in evaluation mode; types are the reference's own affair."""


def _same(out: Operand, x: Operand, *args: Any, **kwargs: Any) -> str:
    is_floating = "float" in out.dtype
    return f"{x}" if is_floating or out.dtype == x.dtype else f"{x}.astype({numpy_type(out.dtype)!r})"


def numpy_type(dtype: str) -> str:
    """The NumPy name of a type; those that NumPy lacks are wide there."""
    return {"bfloat16": "float32", "half": "float16", "double": "float64", "long": "int64"}.get(dtype, dtype)


def _axes(dim: Any) -> str:
    """Axes as an argument: none and an empty list are all of them."""
    if isinstance(dim, list):
        return f"({', '.join(map(str, dim))},)" if dim else "None"
    return str(dim)


def _tuple(values: Sequence[Any]) -> str:
    return f"({', '.join(map(str, values))}{',' if len(values) == 1 else ''})"


def _reshape(out: Operand, x: Operand, *args: Any, **kwargs: Any) -> str:
    return f"np.reshape({x}, {_tuple(out.shape)})"


def _expand(out: Operand, x: Operand, *args: Any, **kwargs: Any) -> str:
    return f"np.broadcast_to({x}, {_tuple(out.shape)})"


def _reduction(name: str) -> Writer:
    def write(out: Operand, x: Operand, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> str:
        return f"np.{name}({x}, axis={_axes(dim)}, keepdims={keepdim})"

    return write


def _extremum(name: str) -> Writer:
    """The values and the positions of the largest or the smallest elements along one axis."""

    def write(out: Operand, x: Operand, dim: int, keepdim: bool = False) -> str:
        return f"(np.{name}({x}, axis={dim}, keepdims={keepdim}),)"

    return write


def _spread(name: str) -> Writer:
    """Variance or deviation, with PyTorch's default of one degree of freedom less."""

    def write(
        out: Operand, x: Operand, dim: Any = None, *args: Any, keepdim: bool = False, **kwargs: Any
    ) -> str:
        if isinstance(dim, bool):  # the old overloads: unbiased alone, or axes, unbiased, keepdim
            dim, args = None, (dim,)
        correction = kwargs.get("correction", kwargs.get("unbiased", args[0] if args else 1))
        keepdim = args[1] if len(args) > 1 else keepdim
        ddof = 1 if correction is None else correction
        return f"np.{name}({x}, axis={_axes(dim)}, ddof={int(ddof)}, keepdims={keepdim})"

    return write


def _add(sign: str) -> Writer:
    def write(out: Operand, x: Any, y: Any, *, alpha: float = 1) -> str:
        return f"{x} {sign} {y}" if alpha == 1 else f"{x} {sign} {alpha} * {y}"

    return write


def _rsub(out: Operand, x: Any, y: Any, alpha: float = 1) -> str:
    return _add("-")(out, y, x, alpha=alpha)


def _div(out: Operand, x: Any, y: Any, *, rounding_mode: str | None = None) -> str:
    found = {None: "{} / {}", "floor": "np.floor({} / {})", "trunc": "np.trunc({} / {})"}[rounding_mode]
    return found.format(x, y)


def _clamp(out: Operand, x: Operand, low: Any = None, high: Any = None, **kwargs: Any) -> str:
    low, high = kwargs.get("min", low), kwargs.get("max", high)
    text = f"{x}"
    if low is not None:
        text = f"np.maximum({text}, {low})"
    return text if high is None else f"np.minimum({text}, {high})"


def _matrix_sum(product: str) -> Writer:
    def write(
        out: Operand, bias: Operand, x: Operand, y: Operand, *, beta: float = 1, alpha: float = 1
    ) -> str:
        left = f"{bias}" if beta == 1 else f"{beta} * {bias}"
        right = f"{product.format(x, y)}" if alpha == 1 else f"{alpha} * ({product.format(x, y)})"
        return f"{left} + {right}"

    return write


def _linear(out: Operand, x: Operand, weight: Operand, bias: Operand | None = None) -> str:
    turned = f"{weight}.T" if len(weight.shape) == 2 else f"{weight}"
    return f"{x} @ {turned}" + ("" if bias is None else f" + {bias}")


def _permute(out: Operand, x: Operand, dims: Sequence[int]) -> str:
    return f"np.transpose({x}, {_tuple([dim % len(x.shape) for dim in dims])})"


def _slice(out: Operand, x: Operand, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> str:
    size = x.shape[dim]
    first, last, _ = slice(start, end, step).indices(size)
    text = f"{first or ''}:{'' if last == size else last}" + (f":{step}" if step != 1 else "")
    return f"{x}[{_places(x, dim, text)}]"


def _select(out: Operand, x: Operand, dim: int, index: int) -> str:
    return f"{x}[{_places(x, dim, str(index))}]"


def _places(x: Operand, dim: int, text: str) -> str:
    """An index with a text at one axis, and whole axes before."""
    return ", ".join([":"] * (dim % len(x.shape)) + [text])


def _pieces(x: Operand, dim: int, sizes: Sequence[int]) -> str:
    ends = [sum(sizes[: at + 1]) for at in range(len(sizes))]
    places = [_places(x, dim, f"{end - size}:{end}") for end, size in zip(ends, sizes, strict=True)]
    return f"[{', '.join(f'{x}[{place}]' for place in places)}]"


def _split(out: Operand, x: Operand, sizes: Any, dim: int = 0) -> str:
    whole = x.shape[dim]
    if isinstance(sizes, int):
        sizes = [min(sizes, whole - at) for at in range(0, whole, sizes)]
    return _pieces(x, dim, sizes)


def _chunk(out: Operand, x: Operand, chunks: int, dim: int = 0) -> str:
    return _split(out, x, -(-x.shape[dim] // chunks), dim)


def _unbind(out: Operand, x: Operand, dim: int = 0) -> str:
    places = [_places(x, dim, str(at)) for at in range(x.shape[dim])]
    return f"[{', '.join(f'{x}[{place}]' for place in places)}]"


def _index(out: Operand, x: Operand, indices: Sequence[Any]) -> str:
    return f"{x}[{', '.join(':' if item is None else str(item) for item in indices)}]"


def _pad(out: Operand, x: Operand, pad: Sequence[int], mode: Any = "constant", value: Any = None) -> str:
    if isinstance(mode, str) and mode != "constant":
        raise UnwritableError(f"it pads by {mode!r}; only padding by a constant can be translated")
    value = value if isinstance(mode, str) else mode
    sides = [(0, 0)] * (len(x.shape) - len(pad) // 2) + list(zip(pad[-2::-2], pad[::-2], strict=True))
    return f"np.pad({x}, {_tuple(sides)}, constant_values={0.0 if value is None else value})"


def _filled(value: Any) -> Writer:
    def write(out: Operand, *args: Any, **kwargs: Any) -> str:
        filling = args[1] if value is None else value
        return f"np.full({_tuple(out.shape)}, {filling}, {numpy_type(out.dtype)!r})"

    return write


def _arange(out: Operand, *args: Any, **kwargs: Any) -> str:
    return f"np.arange({', '.join(map(str, args))}, dtype={numpy_type(out.dtype)!r})"


def _gelu(out: Operand, x: Operand, *, approximate: str = "none") -> str:
    return f"gelu_tanh({x})" if approximate == "tanh" else f"gelu({x})"


def _elu(out: Operand, x: Operand, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> str:
    return f"elu({x}, {alpha}, {scale})"


def _softmax(name: str) -> Writer:
    def write(out: Operand, x: Operand, dim: int, *args: Any, **kwargs: Any) -> str:
        return f"{name}({x}, {dim})"

    return write


def _layer_norm(
    out: Operand, x: Operand, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5,
    *args: Any,
) -> str:  # fmt: skip
    axes = [-at for at in range(len(shape), 0, -1)]
    return _scaled(f"normalise({x}, {_tuple(axes)}, {eps})", weight, bias)


def _rms_norm(out: Operand, x: Operand, shape: Sequence[int], weight: Any = None, eps: Any = None) -> str:
    axes = _tuple([-at for at in range(len(shape), 0, -1)])
    eps = 1.1920928955078125e-07 if eps is None else eps
    return _scaled(f"{x} / np.sqrt(np.mean({x} * {x}, axis={axes}, keepdims=True) + {eps})", weight, None)


def _scaled(text: str, weight: Any, bias: Any) -> str:
    text = text if weight is None else f"{text} * {weight}"
    return text if bias is None else f"{text} + {bias}"


def _by_channel(values: Any, x: Operand) -> Any:
    return None if values is None else f"by_channel({values}, {len(x.shape)})"


def _group_norm(
    out: Operand, x: Operand, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *args: Any
) -> str:
    return _scaled(f"group_norm({x}, {groups}, {eps})", _by_channel(weight, x), _by_channel(bias, x))


def _batch_norm(out: Operand, x: Operand, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any) -> str:
    """With the statistics that are kept; `rest` is training, momentum, eps, or momentum, eps."""
    training, eps = (rest[0], rest[2]) if isinstance(rest[0], bool) else (False, rest[1])
    if training or mean is None or var is None:
        raise UnwritableError(
            "it normalises by the statistics of the batch; "
            "only kept ones (track_running_stats, evaluation mode) can be translated"
        )
    centred = f"({x} - {_by_channel(mean, x)}) / np.sqrt({_by_channel(var, x)} + {eps})"
    return _scaled(centred, _by_channel(weight, x), _by_channel(bias, x))


def _only(text: Writer) -> Writer:
    """The first of several results of a core ATen operator, as `getitem` takes it."""

    def write(out: Operand, *args: Any, **kwargs: Any) -> str:
        return f"({text(out, *args, **kwargs)},)"

    return write


def _pair(values: Any, count: int = 2) -> list[int]:
    found = [values] if isinstance(values, int) else list(values)
    return found * count if len(found) == 1 else found


def _convolution(
    out: Operand, x: Operand, weight: Operand, bias: Any = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> str:  # fmt: skip
    count = len(weight.shape) - 2
    if isinstance(padding, str) or count not in {1, 2} or len(x.shape) != count + 2:
        raise UnwritableError(
            "only convolutions of a batch in one or two dimensions, padded by numbers, can be translated"
        )
    numbers = [_pair(item, count) for item in (stride, padding, dilation)]
    shown = ", ".join(str(item[0]) if count == 1 else _tuple(item) for item in numbers)
    if groups == x.shape[1] == weight.shape[0] and groups > 1:
        text = f"depthwise_{count}d({x}, {weight}, {shown})"
    else:
        text = f"convolution_{count}d({x}, {weight}, {shown}, {groups})"
    return _scaled(text, None, _by_channel(bias, x))


def _core_convolution(
    out: Operand, x: Operand, weight: Operand, bias: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, _: Any, groups: int,
) -> str:  # fmt: skip
    if transposed:
        raise UnwritableError("transposed convolutions cannot be translated; write this one as a convolution")
    return _convolution(out, x, weight, bias, stride, padding, dilation, groups)


def _max_pool(
    out: Operand,
    x: Operand,
    size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil: bool = False,
) -> str:
    _refuse_ceil(ceil, x)
    numbers = [_pair(item) for item in (size, stride or size, padding, dilation)]
    return f"max_pool_2d({x}, {', '.join(map(_tuple, numbers))})"


def _avg_pool(
    out: Operand, x: Operand, size: Any, stride: Any = (), padding: Any = 0, ceil: bool = False,
    count_include_pad: bool = True, divisor: Any = None,
) -> str:  # fmt: skip
    _refuse_ceil(ceil or divisor is not None or (not count_include_pad and any(_pair(padding))), x)
    numbers = [_pair(item) for item in (size, stride or size, padding)]
    return f"avg_pool_2d({x}, {', '.join(map(_tuple, numbers))})"


def _refuse_ceil(is_other: bool, x: Operand) -> None:
    if is_other or len(x.shape) != 4:
        raise UnwritableError(
            "only pooling of (batch, channels, rows, columns) can be translated, without ceil_mode, "
            "divisor_override or padding left out of averages"
        )


def _adaptive_avg_pool(out: Operand, x: Operand, size: Any) -> str:
    rows, columns = _pair(size)
    if x.shape[-2] % rows or x.shape[-1] % columns:
        raise UnwritableError("only adaptive pooling to divisors of the size can be translated")
    window = [x.shape[-2] // rows, x.shape[-1] // columns]
    return _avg_pool(out, x, window, window)


def _attention(
    out: Operand, query: Operand, key: Operand, value: Operand, mask: Any = None, dropout: float = 0.0,
    is_causal: bool = False, *, scale: Any = None, **kwargs: Any,
) -> str:  # fmt: skip
    scale = 1.0 / sqrt(query.shape[-1]) if scale is None else scale
    return f"attention({query}, {key}, {value}, {mask}, {is_causal}, {scale})"


def _vector_norm(
    out: Operand, x: Operand, order: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any
) -> str:
    axes = f"axis={_axes(dim)}, keepdims={keepdim}"
    if order == 1:
        return f"np.sum(np.abs({x}), {axes})"
    if order != 2:
        raise UnwritableError(f"norms of order 1 and 2 can be written in NumPy, not of order {order}")
    return f"np.sqrt(np.sum({x} * {x}, {axes}))"


def _mse(out: Operand, x: Operand, y: Operand, reduction: int = 1) -> str:
    square = f"({x} - {y}) * ({x} - {y})"
    return {0: square, 1: f"np.mean({square})", 2: f"np.sum({square})"}[reduction]


def _logsumexp(out: Operand, x: Operand, dim: Any, keepdim: bool = False) -> str:
    return f"logsumexp({x}, {_axes(dim)}, {keepdim})"


def _squeeze(out: Operand, x: Operand, *args: Any) -> str:
    return _reshape(out, x)


def _repeat(out: Operand, x: Operand, repeats: Sequence[int]) -> str:
    return f"np.tile({x}, {_tuple(repeats)})"


def _einsum(out: Operand, subscripts: str, operands: Sequence[Operand], **kwargs: Any) -> str:
    return f"np.einsum({subscripts!r}, {', '.join(map(str, operands))})"


def _put(part: Writer) -> Writer:
    """A tensor with a part replaced, which is what `torch.export` makes of writes in place."""

    def write(out: Operand, x: Operand, values: Operand, *args: Any) -> str:
        index = part(out, x, *args).removeprefix(f"{x}[").removesuffix("]")
        return f"put({x}, np.s_[{index}], {values})"

    return write


def _template(template: str) -> Writer:
    def write(out: Operand, *args: Any, **kwargs: Any) -> str:
        return template.format(*args, **kwargs)

    return write


OPERATORS: Mapping[str, Writer] = {
    **{name: _template(f"np.{function}({{}})") for name, function in _UNARY.items()},
    **{name: _template(text) for name, text in _BINARY.items()},
    **dict.fromkeys(_SAME, _same),
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze"), _reshape),
    "squeeze": _squeeze, "expand": _expand, "expand_as": _expand, "broadcast_to": _expand,
    "add": _add("+"), "sub": _add("-"), "rsub": _rsub, "div": _div, "true_divide": _div,
    "floor_divide": _template("np.floor({} / {})"), "rsqrt": _template("1.0 / np.sqrt({})"),
    "sigmoid": _template("sigmoid({})"), "silu": _template("{0} * sigmoid({0})"), "gelu": _gelu,
    "erf": _template("erf({})"), "relu": _template("np.maximum({}, 0.0)"),
    "relu6": _template("np.minimum(np.maximum({}, 0.0), 6.0)"), "softplus": _template("softplus({})"),
    "mish": _template("{0} * np.tanh(softplus({0}))"), "log_sigmoid": _template("-softplus(-{})"),
    "elu": _elu, "hardtanh": _template("np.minimum(np.maximum({}, {}), {})"),
    "leaky_relu": lambda out, x, slope=0.01: f"np.where({x} > 0.0, {x}, {slope} * {x})",
    "hardsigmoid": _template("np.minimum(np.maximum({} + 3.0, 0.0), 6.0) / 6.0"),
    "hardswish": _template("{0} * np.minimum(np.maximum({0} + 3.0, 0.0), 6.0) / 6.0"),
    "where": _template("np.where({}, {}, {})"), "masked_fill": _template("np.where({1}, {2}, {0})"),
    "clamp": _clamp, "clip": _clamp, "clamp_min": _clamp,
    "clamp_max": lambda out, x, high: f"np.minimum({x}, {high})",
    "lerp": _template("{0} + {2} * ({1} - {0})"),
    "addcmul": lambda out, x, a, b, *, value=1: f"{x} + {value} * {a} * {b}",
    "addcdiv": lambda out, x, a, b, *, value=1: f"{x} + {value} * {a} / {b}",
    "sum": _reduction("sum"), "mean": _reduction("mean"), "prod": _reduction("prod"),
    "amax": _reduction("max"), "amin": _reduction("min"), "max": _reduction("max"), "min": _reduction("min"),
    "max.dim": _extremum("max"), "min.dim": _extremum("min"),
    "max.other": _template("np.maximum({}, {})"), "min.other": _template("np.minimum({}, {})"),
    "var": _spread("var"), "std": _spread("std"), "linalg_vector_norm": _vector_norm,
    "logsumexp": _logsumexp, "cumsum": lambda out, x, dim, **kwargs: f"np.cumsum({x}, axis={dim})",
    "addmm": _matrix_sum("{} @ {}"), "baddbmm": _matrix_sum("{} @ {}"), "linear": _linear, "einsum": _einsum,
    "permute": _permute, "transpose": _template("np.swapaxes({}, {}, {})"), "t": _template("{}.T"),
    "numpy_T": _template("{}.T"), "movedim": _template("np.moveaxis({}, {}, {})"),
    "slice": _slice, "select": _select, "split": _split, "split_with_sizes": _split, "chunk": _chunk,
    "unbind": _unbind, "getitem": lambda out, x, at: f"{x}[{at}]", "index": _index,
    "slice_scatter": _put(_slice), "select_scatter": _put(_select), "fill": _filled(None),
    "copy": lambda out, x, source: _expand(out, source),
    "narrow": lambda out, x, dim, start, length: _slice(out, x, dim, start, start + length),
    "cat": lambda out, parts, dim=0: f"np.concatenate({parts}, axis={dim})",
    "concat": lambda out, parts, dim=0: f"np.concatenate({parts}, axis={dim})",
    "stack": lambda out, parts, dim=0: f"np.stack({parts}, axis={dim})",
    "repeat": _repeat, "tile": _repeat, "repeat_interleave.self_int": (
        lambda out, x, count, dim=None, **kwargs: f"np.repeat({x}, {count}, axis={dim})"
    ),
    "roll": lambda out, x, shifts, dims=(): f"np.roll({x}, {_axes(shifts)}, axis={_axes(dims)})",
    "flip": lambda out, x, dims: f"np.flip({x}, axis={_axes(dims)})",
    "tril": lambda out, x, diagonal=0: f"np.tril({x}, {diagonal})",
    "triu": lambda out, x, diagonal=0: f"np.triu({x}, {diagonal})",
    "pad": _pad, "constant_pad_nd": _pad, "arange": _arange,
    "full": _filled(None), "full_like": _filled(None), "new_full": lambda out, x, shape, value, **kwargs: (
        _filled(value)(out)
    ),
    **{f"{name}{tail}": _filled(0) for name in ("zeros", "new_zeros") for tail in ("", "_like")},
    **{f"{name}{tail}": _filled(1) for name in ("ones", "new_ones") for tail in ("", "_like")},
    "scalar_tensor": lambda out, value, **kwargs: f"{value}",
    "softmax": _softmax("softmax"), "_softmax": _softmax("softmax"),
    "log_softmax": _softmax("log_softmax"), "_log_softmax": _softmax("log_softmax"),
    "layer_norm": _layer_norm, "native_layer_norm": _only(_layer_norm), "rms_norm": _rms_norm,
    "group_norm": _group_norm, "batch_norm": _batch_norm,
    "_native_batch_norm_legit_no_training": _only(_batch_norm),
    "conv1d": _convolution, "conv2d": _convolution, "convolution": _core_convolution,
    "max_pool2d": _max_pool, "avg_pool2d": _avg_pool, "adaptive_avg_pool2d": _adaptive_avg_pool,
    "scaled_dot_product_attention": _attention, "mse_loss": _mse,
    "embedding": lambda out, weight, indices, *args: f"{weight}[{indices}]",
}  # fmt: skip


def write_operator(target: str, out: Operand, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the NumPy text of a call such as `aten.mul.Tensor`.

    Raises:
        UnwritableError: there is none.
    """
    name = target.removeprefix("aten.")
    base = name.partition(".")[0]
    writer = OPERATORS.get(name) or OPERATORS.get(base)
    if writer is None or (target != base and not target.startswith("aten.")):
        raise UnwritableError("it has no NumPy text; write the module with another operator")
    try:
        return writer(out, *args, **kwargs)
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise UnwritableError(f"it has no NumPy text with these arguments ({error})") from error
