"""Edits LibCST syntax: rebuilds a kernel from its tree, indexes renamed tensors, changes arguments.

Rewrites define a replacement for some nodes of the tree; all other nodes are emitted unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import libcst as cst

from targets.nki.rewrites.kernel_ir import Kernel, Node, Statement
from targets.nki.rewrites.source_layout import wrap_long_lines

CALL_WIDTH = 90
"""Longest call, in characters without indentation, that stays on one line."""

Emit = Callable[[Node], "list[cst.BaseStatement] | None"]
"""The replacement of a node; None keeps it, and descends into a loop."""


def rebuild_block(nodes: Sequence[Node], emit: Emit) -> list[cst.BaseStatement]:
    """The statements of a block after a rewrite; empty loops are dropped."""
    out: list[cst.BaseStatement] = []
    for node in nodes:
        replaced = emit(node)
        if replaced is not None:
            out.extend(replaced)
        elif isinstance(node, Statement):
            out.append(node.node)
        else:
            body = rebuild_block(node.body, emit)
            out.extend([replace_body(node.node, body)] if body else [])
    return out


def replace_body(node: cst.For | cst.If, body: Sequence[cst.BaseStatement]) -> cst.BaseCompoundStatement:
    """The loop or condition with another body; the same node if the body is unchanged."""
    assert isinstance(node.body, cst.IndentedBlock)
    first = with_leading_lines(body[0], _strip_leading_blanks(leading_lines(body[0])))
    if list(map(id, node.body.body)) == list(map(id, [first, *body[1:]])):
        return node
    return node.with_changes(body=node.body.with_changes(body=[first, *body[1:]]))


def _strip_leading_blanks(lines: Sequence[cst.EmptyLine]) -> Sequence[cst.EmptyLine]:
    """Drop blank lines at the start of a block."""
    return lines if not lines or lines[0].comment else _strip_leading_blanks(lines[1:])


def render_module(kernel: Kernel, body: Sequence[cst.BaseStatement], before: Sequence[str] = ()) -> str:
    """The module with the kernel's body replaced, and lines added after the module's last constant."""
    function = kernel.function.with_changes(body=kernel.function.body.with_changes(body=list(body)))
    items = [function if item is kernel.function else item for item in kernel.module.body]
    simple = [number for number, item in enumerate(items) if isinstance(item, cst.SimpleStatementLine)]
    at = simple[-1] + 1 if simple else 0
    items[at:at] = map(parse_statement, before)
    return wrap_long_lines(kernel.tree.writer.write_module(items), kernel.tree.text)


def parse_statement(code: str) -> cst.SimpleStatementLine:
    """One simple statement from its source."""
    parsed = cst.parse_statement(code)
    assert isinstance(parsed, cst.SimpleStatementLine)
    return parsed


def make_call(function: str, words: Mapping[str, str]) -> cst.SimpleStatementLine:
    """A call with keyword arguments as a statement, on several lines if one would be too long."""
    inner = ", ".join(f"{name}={text}" for name, text in words.items())
    code = f"{function}({inner})"
    return parse_statement(code if len(code) <= CALL_WIDTH else f"{function}(\n    {inner}\n)")


def parse_expression(code: str) -> cst.BaseExpression:
    return cst.parse_expression(code)


def code_of(node: cst.CSTNode | None) -> str:
    """Return a node's source; nothing for None."""
    return "" if node is None else cst.Module([]).code_for_node(node)


def bound_names(target: cst.BaseExpression) -> Iterator[str | None]:
    """Yield the names that a target binds; None for anything else."""
    if isinstance(target, cst.Name):
        yield target.value
    elif isinstance(target, cst.Tuple | cst.List):
        for item in target.elements:
            yield from bound_names(item.value)
    else:
        yield None


def group_factor(code: str, *, first: bool = False) -> str:
    """An expression's source as a factor, in parentheses if needed; the first factor may be a division."""
    node = parse_expression(code)
    whole = isinstance(node, cst.Name | cst.Integer | cst.Attribute | cst.Call | cst.Subscript) or node.lpar
    safe = cst.Multiply | cst.FloorDivide if first else cst.Multiply
    product = isinstance(node, cst.BinaryOperation) and isinstance(node.operator, safe)
    return code if whole or product else f"({code})"


def make_loop(var: str, iterable: str, body: Sequence[cst.BaseStatement]) -> cst.BaseStatement:
    """`for var in iterable:` around a body."""
    parsed = cst.parse_statement(f"for {var} in {iterable}:\n    pass\n")
    assert isinstance(parsed, cst.For)
    return replace_body(parsed, body)


def make_condition(test: str, body: Sequence[cst.BaseStatement]) -> cst.BaseStatement:
    """`if test:` around a body."""
    parsed = cst.parse_statement(f"if {test}:\n    pass\n")
    assert isinstance(parsed, cst.If)
    return replace_body(parsed, body)


def with_leading_lines(item: cst.BaseStatement, lines: Sequence[cst.EmptyLine]) -> cst.BaseStatement:
    """The statement with other blank and comment lines before it."""
    return item if lines is leading_lines(item) else item.with_changes(leading_lines=list(lines))


def leading_lines(item: cst.BaseStatement) -> Sequence[cst.EmptyLine]:
    """Blank and comment lines before a statement."""
    assert isinstance(item, cst.SimpleStatementLine | cst.BaseCompoundStatement)
    return item.leading_lines


def splice_block(
    block: cst.IndentedBlock, lines: Sequence[cst.EmptyLine]
) -> cst.FlattenSentinel[cst.BaseStatement]:
    """Return a block's statements for the place of the loop or condition that had these lines above it."""
    inner = [item for item in block.body if isinstance(item, cst.BaseStatement)]
    inner[0] = with_leading_lines(inner[0], [*lines, *leading_lines(inner[0])])
    return cst.FlattenSentinel(inner)


def merge_leading_lines(item: cst.BaseStatement, *others: cst.BaseStatement) -> Sequence[cst.EmptyLine]:
    """The lines before one statement, and the comments before others that it is merged with."""
    return [
        *leading_lines(item),
        *(line for other in others for line in leading_lines(other) if line.comment),
    ]


Change = Callable[[list[cst.SubscriptElement] | None], cst.BaseExpression]
"""The expression in place of a tensor with these subscripts; None for the bare name."""


class VariableTransformer(cst.CSTTransformer):
    """Changes names that are variables: not keywords of arguments, nor attributes."""

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:  # noqa: N802
        return updated_node.with_changes(keyword=original_node.keyword)

    def leave_Attribute(  # noqa: N802
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        return updated_node.with_changes(attr=original_node.attr)


class _TensorReindexer(VariableTransformer):
    """Renames a tensor and changes the subscripts that follow it."""

    def __init__(self, name: str, change: Change) -> None:
        self._name = name
        self._change = change

    def leave_Subscript(  # noqa: N802
        self, original_node: cst.Subscript, updated_node: cst.Subscript
    ) -> cst.BaseExpression:
        if self._is_tensor_name(original_node.value):
            # The tensor may occur in its own subscripts too, as in `name[:, 0 : name.shape[1] // 2]`.
            return self._change(list(updated_node.slice))
        return updated_node

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:  # noqa: N802
        return self._change(None) if self._is_tensor_name(original_node) else updated_node

    def _is_tensor_name(self, node: cst.BaseExpression) -> bool:
        return isinstance(node, cst.Name) and node.value == self._name


def reindex_tensor(
    item: cst.BaseStatement,
    name: str,
    change: Change,
) -> cst.BaseStatement:
    """Replace every `name` and `name[...]`; `change` gets the subscripts (None: bare name)."""
    changed = item.visit(_TensorReindexer(name, change))
    assert isinstance(changed, cst.BaseStatement)
    return changed


def parse_subscript_elements(code: str) -> list[cst.SubscriptElement]:
    """Subscript elements from source such as `:, i`."""
    parsed = cst.parse_expression(f"x[{code}]")
    assert isinstance(parsed, cst.Subscript)
    return list(parsed.slice)


def make_subscript(name: str, parts: Sequence[cst.SubscriptElement]) -> cst.Subscript:
    """`name[parts]`, with commas as a formatter would set them."""
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    ends = [comma] * (len(parts) - 1) + [cst.MaybeSentinel.DEFAULT]
    spaced = [part.with_changes(comma=end) for part, end in zip(parts, ends, strict=True)]
    return cst.Subscript(cst.Name(name), spaced)


class _ArgumentEditor(cst.CSTTransformer):
    """Sets, adds or drops keyword arguments of the outermost call of a statement."""

    def __init__(self, changes: dict[str, str | None], function: str | None) -> None:
        self._changes = changes
        self._function = function
        self._depth = 0

    def visit_Call(self, node: cst.Call) -> None:  # noqa: N802
        del node
        self._depth += 1

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:  # noqa: N802
        del original_node
        self._depth -= 1
        if self._depth:
            return updated_node
        function = parse_expression(self._function) if self._function else updated_node.func
        return updated_node.with_changes(
            func=function, args=_edit_arguments(updated_node.args, self._changes)
        )


def _edit_arguments(args: Sequence[cst.Arg], changes: dict[str, str | None]) -> list[cst.Arg]:
    left = dict(changes)
    kept: list[cst.Arg] = []
    for arg in args:
        name = arg.keyword.value if arg.keyword else ""
        new = left.pop(name) if name in left else ""
        if new is not None:
            kept.append(arg.with_changes(value=parse_expression(new)) if new else arg)
    if kept and kept[-1].comma is not args[-1].comma:
        # What followed the last argument follows the last one that is left.
        last = args[-1]
        kept[-1] = kept[-1].with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    for name, code in left.items():
        if code is not None:
            kept = _append_argument(kept, cst.Arg(parse_expression(code), cst.Name(name), equal))
    return kept


def _append_argument(args: list[cst.Arg], new: cst.Arg) -> list[cst.Arg]:
    """The arguments and one more, which takes over what follows the last one: its comma, a new line."""
    if not args:
        return [new]
    last, comma = args[-1], cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    new = new.with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
    return [
        *args[:-1],
        last.with_changes(comma=comma, whitespace_after_arg=cst.SimpleWhitespace("")),
        new,
    ]


def replace_arguments(
    item: cst.BaseStatement, changes: dict[str, str | None], function: str | None = None
) -> cst.BaseStatement:
    """The call statement with keyword arguments set (None: dropped), and optionally another function."""
    changed = item.visit(_ArgumentEditor(changes, function))
    assert isinstance(changed, cst.BaseStatement)
    return changed


def _call_of(item: cst.BaseStatement) -> cst.Call:
    """The call of a statement that is one."""
    assert isinstance(item, cst.SimpleStatementLine)
    line = item.body[0]
    assert isinstance(line, cst.Expr)
    assert isinstance(line.value, cst.Call)
    return line.value


def argument_texts(item: cst.BaseStatement) -> dict[str, str]:
    """The source of a call statement's arguments, by keyword."""
    call = _call_of(item)
    return {arg.keyword.value: code_of(arg.value) for arg in call.args if arg.keyword is not None}


def name_arguments(item: cst.BaseStatement, names: Sequence[str]) -> cst.BaseStatement:
    """The call statement with these names as keywords of its arguments, in order."""
    call = _call_of(item)
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    args = [
        arg if arg.keyword else arg.with_changes(keyword=cst.Name(name), equal=equal)
        for arg, name in zip(call.args, names, strict=True)
    ]
    return item.with_deep_changes(call, args=args)


class _DeclarationEditor(cst.CSTTransformer):
    """Sets the type of a declaration, and drops the name that the device would know it by."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:  # noqa: N802
        del original_node
        words = {arg.keyword.value for arg in updated_node.args if arg.keyword is not None}
        if "dtype" not in words:
            return updated_node  # of a size, or of the range of a list
        return updated_node.with_changes(
            args=_edit_arguments(updated_node.args, {"dtype": self._dtype, "name": None})
        )


def retype_declaration(item: cst.BaseStatement, dtype: str) -> cst.BaseStatement:
    """A declaration of a tile, or of a list of tiles, with another type."""
    changed = item.visit(_DeclarationEditor(dtype))
    assert isinstance(changed, cst.BaseStatement)
    return changed


def rename_variable(item: cst.BaseStatement, old: str, new: str) -> cst.BaseStatement:
    """The statement with one name in place of another."""
    return reindex_tensor(item, old, lambda parts: make_subscript(new, parts) if parts else cst.Name(new))


def rename_in_expression(code: str, old: str, new: str) -> str:
    """An expression's source with one name in place of another."""
    return cst.Module([rename_variable(parse_statement(code), old, new)]).code.strip()  # type: ignore[list-item]
