"""Mutants of a Python module: small faults in its functions, with names that survive moved lines.

A fault is a change of the syntax tree. Mutants never change what tests should not check: texts (of errors, logs and
SQL), annotations, decorators, defaults, assertions, `__repr__`, and code outside of functions.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Final, TypeAlias

import attrs

_COMPARED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}
_SWAPPED: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LEAVING: Final = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
# A position in the tree, with a node or a list of nodes.
_Place: TypeAlias = tuple[ast.AST, str, int | None]


@attrs.frozen
class Mutant:
    module: str
    function: str
    change: str
    """The source before and after the fault, numbered if a function has the same mutant twice."""
    lines: range
    """The changed statement."""
    _tree: ast.Module
    _place: "_Place"
    _fault: ast.AST

    @property
    def key(self) -> str:
        return f"{self.module}:{self.function}: {self.change}"

    def code(self, filename: str) -> CodeType:
        """Compile the module with this fault."""
        before = _at(self._place)
        _put(self._place, self._fault)
        try:
            return compile(ast.fix_missing_locations(self._tree), filename, "exec")
        finally:
            _put(self._place, before)


def mutants_of(module: str, path: Path) -> list[Mutant]:
    tree = ast.parse(path.read_text(), str(path))
    found: list[Mutant] = []
    for name, function in _functions(tree, ""):
        seen: Counter[str] = Counter()
        for statement, place, fault in _faults(function):
            before = _at(place)
            change = f"{_shown(before)} -> {_shown(fault)}"
            seen[change] += 1
            if seen[change] > 1:
                change += f" #{seen[change]}"
            found.append(Mutant(module, name, change, _lines(statement), tree, place, fault))
    return found


def _functions(node: ast.AST, within: str) -> Iterator[tuple[str, _Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _FUNCTIONS):
            if child.name not in ("__repr__", "__str__"):
                yield within + child.name, child
                yield from _functions(child, f"{within}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{within}{child.name}.")
        else:
            yield from _functions(child, within)


def _faults(function: _Function) -> Iterator[tuple[ast.stmt, _Place, ast.AST]]:
    """Yield the changed statement, the position, and the replacement."""
    names = Counter(n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    for statement, place in _walked(function):
        for fault in _variants(_at(place), names):
            yield statement, place, ast.copy_location(fault, _at(place))


def _walked(function: _Function) -> Iterator[tuple[ast.stmt, _Place]]:
    for index, statement in enumerate(function.body):
        yield from _below(statement, statement, (function, "body", index))


def _below(statement: ast.stmt, node: ast.AST, place: _Place) -> Iterator[tuple[ast.stmt, _Place]]:
    if _is_text(node) or isinstance(node, (ast.ClassDef, ast.Assert, *_FUNCTIONS)):
        return
    yield statement, place
    for field, value in ast.iter_fields(node):
        if _is_left_alone(node, field):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST):
                inner = child if isinstance(child, ast.stmt) else statement
                yield from _below(inner, child, (node, field, index))


# Errors as values. Their second argument is a detail for the log.
_DETAILED: Final = ("WorkFailed", "WouldRefuse")


def _is_left_alone(node: ast.AST, field: str) -> bool:
    """Return true for annotations, patterns, the text of exceptions (mutants that omit the `raise` cover it), and
    `strict` of zip, which is an assertion."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _DETAILED:
        return field == "args"
    strict = isinstance(node, ast.keyword) and node.arg == "strict"
    return strict or field in ("annotation", "pattern") or (isinstance(node, ast.Raise) and field != "cause")


def _is_text(node: ast.AST) -> bool:
    """Return true for a log call, including a condition that guards only the call, a docstring, or a formatted text."""
    if isinstance(node, ast.If) and not node.orelse and all(_is_text(each) for each in node.body):
        return True
    if isinstance(node, ast.Expr):
        node = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(node, ast.Constant):
            return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return isinstance(node.func.value, ast.Name) and node.func.value.id in ("log", "logger", "warnings")
    return isinstance(node, ast.JoinedStr)


def _variants(node: ast.AST, names: Counter[str]) -> Iterator[ast.AST]:
    match node:
        case ast.stmt():
            yield from _statements(node, names)
        case ast.Call():
            yield from _calls(node)
        case ast.expr():
            yield from _expressions(node)
        case ast.comprehension(ifs=ifs):
            for place in range(len(ifs)):
                yield ast.comprehension(node.target, node.iter, ifs[:place] + ifs[place + 1 :], node.is_async)
        case ast.ExceptHandler(body=body) if not isinstance(body[0], ast.Raise):
            yield ast.ExceptHandler(node.type, node.name, [ast.copy_location(ast.Raise(), body[0])])
        case ast.match_case(pattern=pattern, guard=ast.expr(), body=body):
            yield ast.match_case(pattern, None, body)


def _expressions(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(ops=ops):
            for place, op in enumerate(ops):
                if type(op) in _COMPARED:
                    yield ast.Compare(node.left, _with(ops, place, _COMPARED[type(op)]()), node.comparators)
        case ast.BoolOp(values=values) if len(values) > 2:
            for place in range(len(values)):
                yield ast.BoolOp(node.op, values[:place] + values[place + 1 :])
        case ast.BoolOp(values=values):  # one operand alone is a harder mutant than exchanging `and` and `or`
            yield from reversed(values)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMPUTED:
            yield ast.BinOp(left, _COMPUTED[type(op)](), right)
        case ast.IfExp():
            yield ast.IfExp(node.test, node.orelse, node.body)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))


def _calls(node: ast.Call) -> Iterator[ast.Call]:
    func, args, keywords = node.func, node.args, node.keywords
    for place, keyword in enumerate(keywords):
        if keyword.arg != "strict":  # zip's `strict` is an assertion
            yield ast.Call(func, args, keywords[:place] + keywords[place + 1 :])
    detailed = isinstance(func, ast.Name) and func.id in _DETAILED
    if len(args) + len(keywords) > 1 and args and not detailed and not _is_default(args[-1]):
        yield ast.Call(func, args[:-1], keywords)
    if isinstance(func, ast.Name) and func.id in _SWAPPED:
        yield ast.Call(ast.copy_location(ast.Name(_SWAPPED[func.id], ast.Load()), func), args, keywords)


def _statements(node: ast.stmt, names: Counter[str]) -> Iterator[ast.stmt]:
    match node:
        case ast.Expr(value=ast.Yield() | ast.YieldFrom()):
            pass
        case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break() | ast.Delete():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Name(id=name)]) if names[name] < 2:
            pass  # omitting it leaves the name undefined
        case ast.Assign():
            yield ast.Pass()
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield ast.Return(ast.copy_location(ast.Constant(None), value))
        case _:
            yield from _blocks(node)
    if isinstance(node, ast.AugAssign) and type(node.op) in _COMPUTED:
        yield ast.AugAssign(node.target, _COMPUTED[type(node.op)](), node.value)


def _blocks(node: ast.stmt) -> Iterator[ast.stmt]:
    match node:
        case ast.If(test=test, body=body, orelse=orelse):
            if not _is_tried_itself(test):
                yield ast.If(ast.copy_location(ast.UnaryOp(ast.Not(), test), test), body, orelse)
            if not orelse:
                yield ast.Pass()
        case ast.Try(body=body, handlers=handlers, finalbody=[_, *_]):
            yield ast.Try(body, handlers, node.orelse, [ast.copy_location(ast.Pass(), node.finalbody[0])])
        case ast.Match(subject=subject, cases=cases):
            for place, case in enumerate(cases):
                if len(cases) > 1 and not _is_rest(case):
                    yield ast.Match(subject, cases[:place] + cases[place + 1 :])


def _is_tried_itself(test: ast.expr) -> bool:
    """Return true for a condition with mutants of its own that are at least as strong as its negation."""
    opposites = ast.Eq | ast.NotEq | ast.Is | ast.IsNot | ast.In | ast.NotIn
    return isinstance(test, ast.UnaryOp | ast.BoolOp) or (
        isinstance(test, ast.Compare) and isinstance(test.ops[0], opposites)
    )


def _is_default(argument: ast.expr) -> bool:
    """Return true for a byte order that equals the default."""
    return isinstance(argument, ast.Constant) and argument.value == "big"


def _is_rest(case: ast.match_case) -> bool:
    """Return true for a last case that only does nothing."""
    match case:
        case ast.match_case(ast.MatchAs(None), None, [ast.Pass() | ast.Return(None | ast.Constant(None | False))]):
            return True
        case _:
            return False


def _with(values: list[ast.cmpop], place: int, value: ast.cmpop) -> list[ast.cmpop]:
    return [*values[:place], value, *values[place + 1 :]]


def _at(place: _Place) -> ast.AST:
    node, field, index = place
    value = getattr(node, field)
    found: ast.AST = value if index is None else value[index]
    return found


def _put(place: _Place, value: ast.AST) -> None:
    node, field, index = place
    if index is None:
        setattr(node, field, value)
    else:
        getattr(node, field)[index] = value


def _lines(statement: ast.stmt) -> range:
    """Return the lines of a statement, or the header of a compound statement."""
    return range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)


def _shown(node: ast.AST) -> str:
    """Return one line of source, shortened."""
    if isinstance(node, ast.match_case):
        text = ast.unparse(ast.Match(ast.Name("_"), [node])).partition("\n")[2].strip()
    elif isinstance(node, ast.comprehension | ast.ExceptHandler):
        text = ast.unparse(node).strip()
    else:
        text = ast.unparse(node)
    if isinstance(node, ast.Match):
        text += " " + "; ".join(ast.unparse(case.pattern) for case in node.cases)
    line = " ".join(text.split())
    return line if len(line) <= 160 else f"{line[:110]} ... {line[-45:]}"
