"""Static rules: what a kernel's text may contain, read off its syntax tree before anything runs.

An allow-list: a few modules, of some only some names; of the built-in functions those that compute. No
private or dunder names, no frames, no raw memory, nothing assigned to a module, no code at import time beyond
definitions and constants. The jail is the wall;
these rules are there to say early and clearly, with a line, what a kernel has no use for.
"""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from string import Formatter

_NUMPY = frozenset(
    """
    bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 dtype finfo iinfo ndarray
    inf nan pi newaxis array asarray zeros ones full eye identity arange tril triu tile repeat concatenate
    stack add subtract multiply divide true_divide negative abs absolute square sqrt reciprocal power exp log
    sin cos tan tanh arctan sign floor ceil rint maximum minimum max min sum prod mean all any argmax equal
    not_equal less less_equal greater greater_equal logical_and logical_or logical_xor logical_not
    bitwise_and bitwise_or bitwise_xor invert left_shift right_shift where broadcast_to reshape transpose
    """.split()  # noqa: SIM905  eighty names read better as one text
)
"""What kernels need of NumPy: types, constant tiles and, in the legacy namespace, those its own go by."""

_TYPING = frozenset(
    """
    Annotated Any Callable ClassVar Dict Final Generator Iterable Iterator List Literal Mapping NamedTuple
    Optional Sequence Tuple TypeAlias Union
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
    "collections": frozenset({"Counter", "OrderedDict", "defaultdict", "deque", "namedtuple"}),
    "collections.abc": frozenset({"Callable", "Generator", "Iterable", "Iterator", "Mapping", "Sequence"}),
    "contextlib": frozenset({"contextmanager", "nullcontext"}),
    "dataclasses": frozenset({"dataclass", "field", "replace"}),
    "enum": frozenset({"Enum", "IntEnum", "auto"}),
    "functools": frozenset({"partial", "reduce", "lru_cache", "cache"}),
    "operator": frozenset({"add", "floordiv", "itemgetter", "mod", "mul", "neg", "sub"}),
    "typing": _TYPING,
}
"""Modules that a kernel may import, with the names it may use of them (None: all public ones)."""

BUILTINS = frozenset(
    """
    abs all any bin bool callable chr classmethod dict divmod enumerate filter float format frozenset hash hex
    int isinstance iter len list map max min next object ord pow print property range repr reversed round set
    slice sorted staticmethod str sum super tuple zip
    ArithmeticError AssertionError Exception IndexError KeyError LookupError NotImplementedError OverflowError
    RuntimeError StopIteration TypeError ValueError ZeroDivisionError True False None
    """.split()  # noqa: SIM905  forty names read better as one text
)
_ALL_BUILTINS = frozenset(dir(builtins))

_INTERNALS = frozenset(
    """
    os sys inspect functools context current current_api tracing Recorder LegacyRecorder recorder
    OPERATORS FUNCTIONS UNSUPPORTED
    ctypes tofile dump dumps setflags
    gi_frame gi_code gi_yieldfrom cr_frame cr_code ag_frame ag_code tb_frame tb_next
    f_back f_builtins f_code f_globals f_locals f_trace with_traceback
    """.split()  # noqa: SIM905  thirty names read better as one text
)
"""Attributes without an underscore that lead out of a kernel: to what the simulator's modules import, to
files and raw memory from arrays, to the frames of whoever called."""

_SPECIAL_METHODS = frozenset(
    """
    __init__ __post_init__ __call__ __len__ __iter__ __next__ __contains__ __getitem__ __setitem__ __enter__
    __exit__ __repr__ __str__ __bool__ __int__ __index__ __hash__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__
    __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __floordiv__ __mod__ __neg__ __matmul__
    """.split()  # noqa: SIM905  thirty names read better as one text
)
"""Special methods that a kernel's classes may have; others hook into pickling, arrays, imports or lookups."""

_TOP_LEVEL = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
_NOT_CONSTANT = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
_ASYNC = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
_BUILTIN_CALLS_AT_TOP = frozenset({"abs", "float", "int", "len", "list", "max", "min", "range", "tuple"})


@dataclass(frozen=True, slots=True)
class Offence:
    """A broken rule: its stable code, where, and what to do instead."""

    code: str
    message: str
    line: int
    hint: str


def check(tree: ast.Module, source: str) -> list[Offence]:
    """Return every offence in a kernel's source, by line.

    Raises:
        SyntaxError: it parses, but Python would not compile it.
    """
    found = [
        *_imports(tree),
        *_names(tree, source),
        *_attributes(tree),
        *_definitions(tree),
        *_modules_as_values(tree),
        *_top_level(tree),
        *_statements(tree),
    ]
    return sorted(set(found), key=lambda offence: (offence.line, offence.code, offence.message))


def _imports(tree: ast.Module) -> Iterator[Offence]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _module(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from _module(module, node.lineno)
            for alias in node.names:
                yield from _member(module, alias.name, node.lineno)


def _module(name: str, line: int) -> Iterator[Offence]:
    if name not in MODULES:
        allowed = ", ".join(name for name in MODULES if name != "__future__")
        yield Offence("forbidden_import", f"import of {name}", line, f"a kernel may import {allowed}")


def _member(module: str, name: str, line: int) -> Iterator[Offence]:
    allowed = MODULES.get(module, frozenset())
    if module not in MODULES or f"{module}.{name}" in MODULES:
        return
    hidden = name in _INTERNALS and allowed is None
    if name == "*" or name.startswith("_") or hidden or (allowed is not None and name not in allowed):
        hint = f"of {module} a kernel may use {', '.join(sorted(allowed or {'its public names'}))}"
        yield Offence("forbidden_import", f"{name} from {module}", line, hint)


def _names(tree: ast.Module, source: str) -> Iterator[Offence]:
    """Built-ins that are not allowed, wherever Python would look one up, and dunder names anywhere."""
    lines: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            lines[node.id] = min(node.lineno, lines.get(node.id, node.lineno))
    forbidden = _looked_up(_scopes(source)) & (_ALL_BUILTINS - BUILTINS)
    dunder = {name for name in lines if name.startswith("__")}
    for name in forbidden | dunder:
        hint = "a kernel computes with shapes and nki calls; use another name if it is your own"
        yield Offence("forbidden_name", f"use of {name}", lines.get(name, 1), hint)


def _scopes(source: str) -> symtable.SymbolTable:
    try:
        return symtable.symtable(source, "kernel.py", "exec")
    except RecursionError as error:
        raise SyntaxError("the source is nested too deeply") from error


def _looked_up(table: symtable.SymbolTable) -> set[str]:
    """Names that may reach the built-ins at run time.

    In functions those are the globals. Names bound at module or class level count as well: until they are
    bound there, and after a `del`, they mean the built-in.
    """
    local = table.get_type() == "function"
    found = {s.get_name() for s in table.get_symbols() if not local or s.is_global()}
    return found.union(*(_looked_up(child) for child in table.get_children()))


def _attributes(tree: ast.Module) -> Iterator[Offence]:
    restricted = dict(_restricted_aliases(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield from _attribute(node, restricted)
        elif isinstance(node, ast.MatchClass):
            yield from (_private(name, node.lineno) for name in node.kwd_attrs if _is_internal(name))


def _attribute(node: ast.Attribute, restricted: Mapping[str, str]) -> Iterator[Offence]:
    if node.attr.startswith("_") and not _own(node):
        yield _private(node.attr, node.lineno)
    elif isinstance(node.value, ast.Name) and node.value.id in restricted:
        yield from _member(restricted[node.value.id], node.attr, node.lineno)
    elif node.attr in _INTERNALS or _formats_attributes(node):
        yield _private(node.attr, node.lineno)


def _own(node: ast.Attribute) -> bool:
    """Whether an underscored attribute is one of the class it stands in, or a special method it inherits."""
    match node.value:
        case ast.Name(id="self"):
            return not node.attr.startswith("__")
        case ast.Call(func=ast.Name(id="super"), args=[]):
            return node.attr in _SPECIAL_METHODS
    return False


def _formats_attributes(node: ast.Attribute) -> bool:
    """Whether a text is formatted that looks up attributes, or may: only one that is written out may not."""
    if node.attr not in {"format", "format_map"}:
        return False
    match node.value:
        case ast.Constant(value=str() as text):
            return any(_is_internal(name) for name in _looked_up_in(text))
    return True


def _looked_up_in(text: str) -> Iterator[str]:
    """The attributes that the fields of a format, and those in their specifications, look up."""
    try:
        fields = list(Formatter().parse(text))
    except ValueError:  # it is no format, and raises when it is used as one
        return
    for _, field, spec, _ in fields:
        yield from (field or "").split(".")[1:]
        yield from _looked_up_in(spec or "")


def _is_internal(name: str) -> bool:
    return name.startswith("_") or name in _INTERNALS


def _private(name: str, line: int) -> Offence:
    return Offence("forbidden_attribute", f"use of attribute {name}", line, "a kernel uses public names only")


def _definitions(tree: ast.Module) -> Iterator[Offence]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("__"):
            if node.name not in _SPECIAL_METHODS:
                hint = "give it a name of your own"
                yield Offence("forbidden_name", f"a method {node.name}", node.lineno, hint)
        elif isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.Import | ast.ImportFrom):
                    hint = "import at the top of the file"
                    yield Offence("forbidden_import", "an import in a class", part.lineno, hint)


def _modules_as_values(tree: ast.Module) -> Iterator[Offence]:
    """Modules passed on under names that the rules do not follow, and what is assigned to a module."""
    restricted = dict(_restricted_aliases(tree))
    imported = set(_imported_names(tree))
    looked_into = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in restricted and id(node) not in looked_into:
            hint = f"name what is needed of it: {node.id}.name"
            yield Offence("forbidden_name", f"use of the module {node.id} as a value", node.lineno, hint)
        elif (
            isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and _root(node) in imported
        ):
            text = f"assignment to {ast.unparse(node)}"
            hint = "what is imported stays as it is; use a name of your own"
            yield Offence("forbidden_statement", text, node.lineno, hint)


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _imported_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else []:
            yield alias.asname or alias.name.partition(".")[0]


def _restricted_aliases(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Variable and module, for imported modules of which only some names may be used."""
    for node in ast.walk(tree):
        for alias in node.names if isinstance(node, ast.Import) else []:
            if MODULES.get(alias.name) is not None:
                yield alias.asname or alias.name, alias.name


def _top_level(tree: ast.Module) -> Iterator[Offence]:
    hint = "a kernel file holds imports, constants and functions"
    for node in tree.body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not isinstance(node, _TOP_LEVEL) and not docstring:
            text = f"{type(node).__name__} at import time"
            yield Offence("import_side_effect", text, node.lineno, hint)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for part in ast.walk(node):
                if isinstance(part, _NOT_CONSTANT) and not _harmless_call(part):
                    yield Offence("import_side_effect", "a call at import time", part.lineno, hint)


def _harmless_call(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id=name)):
            return name in _BUILTIN_CALLS_AT_TOP
    return False


def _statements(tree: ast.Module) -> Iterator[Offence]:
    for node in ast.walk(tree):
        if isinstance(node, _ASYNC):
            yield Offence("forbidden_statement", "async code", node.lineno, "write plain functions")
