"""The names that kernels may use: modules and their contents, built-in functions, special methods.

`rules` checks a kernel's text against them.
"""

from __future__ import annotations

from collections.abc import Mapping

_NUMPY = frozenset(
    """
    bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 dtype finfo iinfo
    integer floating number generic issubdtype intp ndim shape size
    inf nan pi e newaxis array asarray zeros ones full zeros_like ones_like full_like eye identity arange
    linspace meshgrid indices diag tri tril triu tile repeat concatenate stack hstack vstack split array_split
    add subtract multiply divide true_divide floor_divide mod remainder fmod gcd lcm negative positive abs
    absolute square sqrt cbrt reciprocal power float_power exp exp2 expm1 log log2 log10 log1p
    sin cos tan sinh cosh tanh arcsin arccos arctan arctan2 hypot sign floor ceil trunc rint round clip
    maximum minimum max min sum prod mean var std cumsum cumprod diff all any argmax argmin argsort sort
    unique count_nonzero nonzero isnan isinf isfinite isclose allclose array_equal dot matmul outer kron
    equal not_equal less less_equal greater greater_equal logical_and logical_or logical_xor logical_not
    bitwise_and bitwise_or bitwise_xor invert left_shift right_shift where broadcast_to reshape transpose
    squeeze expand_dims ravel flip roll
    """.split()  # noqa: SIM905  a hundred names read better as one text
)
"""What kernels need of NumPy: types, constant tiles and the names for these in the legacy namespace.

Functions that return uninitialised memory are left out: a kernel could depend on it, and its verdict would
not repeat.
"""

_TYPING = frozenset(
    """
    Annotated Any Callable ClassVar Collection Dict Final FrozenSet Generator Generic Hashable Iterable
    Iterator List Literal Mapping MutableMapping MutableSequence NamedTuple Never NewType NoReturn
    Optional ParamSpec Protocol Self Sequence Set Sized SupportsFloat SupportsIndex SupportsInt Tuple Type
    TypeAlias TypeVar TypedDict Union cast overload
    """.split()  # noqa: SIM905  as above
)

_OPERATOR = frozenset(
    """
    abs add and_ concat contains eq floordiv ge getitem gt index invert is_ is_not itemgetter le lshift lt
    matmul mod mul ne neg not_ or_ pos pow rshift sub truediv truth xor
    """.split()  # noqa: SIM905  as above
)

MODULES: Mapping[str, frozenset[str] | None] = {
    "__future__": frozenset({"annotations"}),
    "nki": None,
    "nki.isa": None,
    "nki.isa.constants": None,
    "nki.language": None,
    "nki.typing": None,
    "neuronxcc": None,
    "neuronxcc.nki": None,
    "neuronxcc.nki.compiler": None,
    "neuronxcc.nki.isa": None,
    "neuronxcc.nki.language": None,
    "neuronxcc.nki.typing": None,
    "numpy": _NUMPY,
    "math": None,
    "itertools": None,
    "collections": frozenset({"ChainMap", "Counter", "OrderedDict", "defaultdict", "deque", "namedtuple"}),
    "collections.abc": frozenset(
        {"Callable", "Collection", "Container", "Generator", "Hashable", "Iterable", "Iterator", "Mapping"}
        | {"MutableMapping", "MutableSequence", "Reversible", "Sequence", "Set", "Sized"}
    ),
    "contextlib": frozenset({"contextmanager", "nullcontext"}),
    "dataclasses": frozenset({"KW_ONLY", "InitVar", "dataclass", "field", "replace"}),
    "enum": frozenset({"Enum", "Flag", "IntEnum", "IntFlag", "StrEnum", "auto", "unique"}),
    "functools": frozenset(
        {
            "cache",
            "cached_property",
            "cmp_to_key",
            "lru_cache",
            "partial",
            "reduce",
            "total_ordering",
            "wraps",
        }
    ),
    "operator": _OPERATOR,
    "typing": _TYPING,
}
"""Modules that a kernel may import, with the names it may use of them (None: all public ones)."""

BUILTINS = frozenset(
    """
    abs all any bin bool bytes callable chr classmethod dict divmod enumerate filter float format frozenset
    hex int isinstance iter len list map max min next object oct ord pow print property range repr reversed
    round set slice sorted staticmethod str sum super tuple zip Ellipsis NotImplemented
    ArithmeticError AssertionError Exception IndexError KeyError LookupError NotImplementedError OverflowError
    RuntimeError StopIteration TypeError ValueError ZeroDivisionError True False None
    """.split()  # noqa: SIM905  forty names read better as one text
)
"""Not `hash` and `id`, which expose addresses; not `type`, as an array's type opens raw memory."""

UNSAFE = frozenset(
    """
    ctypes dump dumps resize setflags tofile
    gi_frame gi_code gi_yieldfrom cr_frame cr_code ag_frame ag_code tb_frame tb_next
    f_back f_builtins f_code f_globals f_locals f_trace with_traceback
    """.split()  # noqa: SIM905  twenty names read better as one text
)
"""Attributes without an underscore that lead out of a kernel.

They reach raw memory and files through NumPy's arrays, and the frames of callers through generators and
tracebacks. Nothing of the simulator is among them: its modules and values have the documented names alone.
"""

SPECIAL_METHODS = frozenset(
    """
    __init__ __post_init__ __call__ __len__ __iter__ __next__ __contains__ __getitem__ __setitem__ __enter__
    __exit__ __repr__ __str__ __bool__ __int__ __index__ __hash__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__
    __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __floordiv__ __mod__ __neg__ __matmul__
    """.split()  # noqa: SIM905  thirty names read better as one text
)
"""Special methods that a kernel's classes may define; others hook into pickling, arrays or imports."""
