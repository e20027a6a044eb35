"""Methods that a test calls, with the classes of the objects: read from the sources, without running them.

    found = calls_of(ROOT / "tests/sdk/messages/test_sending.py", "test_a_message_sent_is_received_and_completed")
    assert found.has(ServiceBusSender, "send_messages")

Follows the helpers and fixtures of a test within `tests`. The class of an object is known from annotations, from
constructors, and from the results of calls; if no class is known, a call is ignored. Lists and dicts are treated as
their elements. A bound method that is passed as an argument (`run(client.close)`) counts as called.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TESTS: Final = Path(__file__).parents[1]
_MAX_DEPTH: Final = 40
"""Maximum depth of nested calls."""

AnyFunction: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class ClassRef(NamedTuple):
    """Class, by its file and name."""

    file: Path
    name: str


class InferredValue(NamedTuple):
    """Possible value of an expression: an instance of a class, a class, a function, or a tuple of values."""

    kind: str
    owner: ClassRef | None = None
    function: tuple[Path, str, int] | None = None
    items: tuple[frozenset[InferredValue], ...] = ()


InferredValues: TypeAlias = frozenset[InferredValue]
NOTHING: Final[InferredValues] = frozenset()


@dataclass
class FoundCalls:
    """Calls and sources of a test and its helpers."""

    calls: set[tuple[ClassRef, str]] = field(default_factory=set)
    sources: list[str] = field(default_factory=list)

    def has(self, kind: type, method: str) -> bool:
        """Return whether the method is called on an object of that class or a subclass."""
        wanted = class_of(kind)
        return any(name == method and wanted in class_hierarchy(owner) for owner, name in self.calls)

    def mentions(self, text: str) -> bool:
        """Return whether the test, or a helper that it uses, contains a text."""
        return any(text in source for source in self.sources)


class Module:
    """One source file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        text = file.read_text()
        self.lines = text.splitlines()
        self.tree = ast.parse(text)
        self.functions: dict[str, AnyFunction] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.imports: dict[str, tuple[str, str | None]] = {}
        self.values: dict[str, ast.expr] = {}
        self._read(self.tree.body)

    def source_of(self, function: AnyFunction) -> str:
        """Return the text of a function, with its decorators."""
        first = min([function.lineno, *[one.lineno for one in function.decorator_list]])
        return "\n".join(self.lines[first - 1 : function.end_lineno])

    def _read(self, body: Iterable[ast.stmt]) -> None:  # noqa: C901, PLR0912  # a branch for each kind of statement
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.functions[node.name] = node
            elif isinstance(node, ast.ClassDef):
                self.classes[node.name] = node
            elif isinstance(node, ast.Import):
                for one in node.names:
                    self.imports[one.asname or one.name.partition(".")[0]] = (one.name, None)
            elif isinstance(node, ast.ImportFrom):
                for one in node.names:
                    self.imports[one.asname or one.name] = (self._absolute(node), one.name)
            elif isinstance(node, ast.If | ast.Try):
                self._read(node.body)
                self._read(node.orelse)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.values[node.targets[0].id] = node.value
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
                parts = (
                    node.value.elts if isinstance(node.value, ast.Tuple) else [node.value] * len(node.targets[0].elts)
                )
                for target, value in zip(node.targets[0].elts, parts, strict=False):
                    if isinstance(target, ast.Name):
                        self.values[target.id] = value
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                self.values[node.target.id] = node.value

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = _package_of(self.file, node.level)
        return f"{package}.{node.module}" if node.module else package


def _package_of(file: Path, level: int) -> str:
    folder = file.parent
    for _ in range(level - 1):
        folder = folder.parent
    names = []
    while (folder / "__init__.py").exists() or folder.name == "azure":
        names.append(folder.name)
        folder = folder.parent
    return ".".join(reversed(names))


@cache
def module(file: Path) -> Module:
    """Return a file, read once."""
    return Module(file)


@cache
def _file_of(name: str) -> Path | None:
    """Return the file of a module; None unless it is a Python module of tests, twinbus or azure."""
    if name.partition(".")[0] == "tests":
        base = TESTS.parent.joinpath(*name.split("."))
        found = [file for file in (base.with_suffix(".py"), base / "__init__.py") if file.exists()]
        return found[0] if found else None
    if name.partition(".")[0] not in {"azure", "twinbus"}:
        return None
    try:
        spec = importlib.util.find_spec(name)
    except ImportError:
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)


def class_of(kind: type) -> ClassRef:
    """Return the reference of an imported class."""
    file = inspect.getsourcefile(kind)
    assert file is not None
    return ClassRef(Path(file), kind.__name__)


@cache
def class_hierarchy(owner: ClassRef) -> tuple[ClassRef, ...]:
    """Return a class and its known base classes."""
    known = module(owner.file)
    found = [owner]
    for base in known.classes[owner.name].bases:
        plain = base.value if isinstance(base, ast.Subscript) else base
        for thing in _look_up(known, plain.id) if isinstance(plain, ast.Name) else NOTHING:
            if thing.kind == "class" and thing.owner is not None:
                found += class_hierarchy(thing.owner)
    return tuple(found)


def _look_up(known: Module, name: str) -> InferredValues:
    """Return the possible values of a name in a module."""
    return _look_up_in(known.file, name)


@cache
def _look_up_in(file: Path, name: str, depth: int = 0) -> InferredValues:
    known = module(file)
    if name in known.classes:
        return frozenset({InferredValue("class", ClassRef(known.file, name))})
    if name in known.functions:
        return frozenset({InferredValue("function", None, (known.file, "", known.functions[name].lineno))})
    if name in known.imports and depth < _MAX_DEPTH:
        where, what = known.imports[name]
        source = _file_of(where)
        if source is not None and what is not None:
            found = _look_up_in(source, what, depth + 1)
            if found:
                return found
    if name in known.values:
        return _Walk(FoundCalls()).infer(known.values[name], _Scope(known, None, {}), 0)
    return NOTHING


@cache
def _value_of(file: Path, name: str) -> tuple[str, ...]:
    """Return the text of a constant of the tests, if the name is one."""
    known = module(file)
    if name in known.imports and known.imports[name][1] is not None:
        source = _file_of(known.imports[name][0])
        known = module(source) if source is not None and source.is_relative_to(TESTS) else known
    return (ast.unparse(known.values[name]),) if name in known.values else ()


@cache
def _function_at(file: Path, line: int) -> AnyFunction:
    for node in ast.walk(module(file).tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno == line:
            return node
    raise AssertionError(file, line)


def _is(function: AnyFunction, decorator: str) -> bool:
    return any(decorator in ast.unparse(one) for one in function.decorator_list)


@cache
def _member(owner: ClassRef, name: str) -> tuple[ClassRef, AnyFunction] | None:
    """Return the method or property of that name, and the class that defines it."""
    for one in class_hierarchy(owner):
        for node in module(one.file).classes[one.name].body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
                return one, node
    return None


@dataclass
class _Scope:
    known: Module
    self_is: ClassRef | None
    names: dict[str, InferredValues]


class _Walk:
    """Walk through one test."""

    def __init__(self, found: FoundCalls) -> None:
        self.found = found
        self._returned: dict[object, InferredValues] = {}
        """Results by call; a call that is not finished yet has no known result."""
        self._fields: dict[tuple[ClassRef, str], InferredValues] = {}

    # --- functions ----------------------------------------------------------------------------------------------------

    def enter(
        self, known: Module, function: AnyFunction, owner: ClassRef | None, given: list[InferredValues], depth: int
    ) -> InferredValues:
        """Follow a call; return its possible results."""
        key = (known.file, function.lineno, owner, tuple(given))
        if key in self._returned or depth > _MAX_DEPTH:
            return self._returned.get(key, NOTHING)
        self._returned[key] = NOTHING
        self.found.sources.append(known.source_of(function))
        scope = _Scope(known, owner, self._parameters(known, function, owner, given))
        self._mention_values(known, function)
        for decorator in function.decorator_list:
            self.infer(decorator, scope, depth + 1)
        self._returned[key] = self._body(function.body, scope, depth)
        return self._returned[key]

    def _mention_values(self, known: Module, function: AnyFunction) -> None:
        """Add the constants that a function uses to its sources."""
        for node in ast.walk(function):
            if isinstance(node, ast.Name):
                self.found.sources += _value_of(known.file, node.id)

    def _parameters(
        self, known: Module, function: AnyFunction, owner: ClassRef | None, given: list[InferredValues]
    ) -> dict[str, InferredValues]:
        names: dict[str, InferredValues] = {}
        arguments = [*function.args.posonlyargs, *function.args.args]
        if owner is not None and arguments and not _is(function, "staticmethod"):
            kind = "class" if _is(function, "classmethod") else "instance"
            names[arguments[0].arg] = frozenset({InferredValue(kind, owner)})
            arguments = arguments[1:]
        for place, argument in enumerate(arguments):
            known_by = self.annotated(argument.annotation, known)
            names[argument.arg] = known_by or (given[place] if place < len(given) else NOTHING)
        for argument in function.args.kwonlyargs:
            names[argument.arg] = self.annotated(argument.annotation, known)
        return names

    def _body(self, body: list[ast.stmt], scope: _Scope, depth: int) -> InferredValues:
        returned: InferredValues = NOTHING
        for node in body:
            returned |= self._statement(node, scope, depth)
        return returned

    def _statement(self, node: ast.stmt, scope: _Scope, depth: int) -> InferredValues:  # noqa: C901, PLR0912  # as above
        returned: InferredValues = NOTHING
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = _Scope(scope.known, scope.self_is, scope.names | self._parameters(scope.known, node, None, []))
            result = self._body(node.body, inner, depth)
            declared = self.annotated(node.returns, scope.known)
            scope.names[node.name] = frozenset({InferredValue("returns", None, None, (declared or result,))})
            return NOTHING
        if isinstance(node, ast.Return):
            return self.infer(node.value, scope, depth) if node.value is not None else NOTHING
        if isinstance(node, ast.Assign):
            value = self.infer(node.value, scope, depth)
            for target in node.targets:
                self._bind(target, value, scope, depth)
        elif isinstance(node, ast.AnnAssign):
            value = self.infer(node.value, scope, depth) if node.value is not None else NOTHING
            self._bind(node.target, self.annotated(node.annotation, scope.known) or value, scope, depth)
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                value = self.infer(item.context_expr, scope, depth)
                if item.optional_vars is not None:
                    self._bind(item.optional_vars, value, scope, depth)
            returned = self._body(node.body, scope, depth)
        elif isinstance(node, ast.For | ast.AsyncFor):
            self._bind(node.target, self.infer(node.iter, scope, depth), scope, depth)
            returned = self._body([*node.body, *node.orelse], scope, depth)
        elif isinstance(node, ast.If | ast.While):
            self.infer(node.test, scope, depth)
            returned = self._body([*node.body, *node.orelse], scope, depth)
        elif isinstance(node, ast.Try):
            handled = [one for handler in node.handlers for one in handler.body]
            returned = self._body([*node.body, *handled, *node.orelse, *node.finalbody], scope, depth)
        else:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self.infer(child, scope, depth)
        return returned

    def _bind(self, target: ast.expr, value: InferredValues, scope: _Scope, depth: int) -> None:
        if isinstance(target, ast.Name):
            scope.names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            for place, part in enumerate(target.elts):
                self._bind(part, _item(value, place, len(target.elts)), scope, depth)
        elif isinstance(target, ast.Starred):
            self._bind(target.value, value, scope, depth)
        else:
            self.infer(target, scope, depth)

    # --- annotations --------------------------------------------------------------------------------------------------

    def annotated(self, node: ast.expr | None, known: Module) -> InferredValues:  # noqa: PLR0911  # one for each form
        """Return the possible values of an annotation."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node = ast.parse(node.value, mode="eval").body
        if isinstance(node, ast.Name):
            return frozenset(
                InferredValue("instance", thing.owner) for thing in _look_up(known, node.id) if thing.kind == "class"
            )
        if isinstance(node, ast.BinOp):
            return self.annotated(node.left, known) | self.annotated(node.right, known)
        if isinstance(node, ast.Subscript):
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            name = ast.unparse(node.value).rpartition(".")[2]
            if name in {"Callable", "type", "Literal"}:
                return NOTHING
            if name in {"tuple", "Tuple"}:
                items = tuple(self.annotated(part, known) for part in parts)
                return frozenset({InferredValue("tuple", None, None, items)}) if any(items) else NOTHING
            if name in {"Optional", "Union"}:
                return frozenset().union(*[self.annotated(part, known) for part in parts])
            own = self.annotated(node.value, known)
            return own or self.annotated(parts[0] if name in {"Generator", "AsyncGenerator"} else parts[-1], known)
        return NOTHING

    # --- expressions --------------------------------------------------------------------------------------------------

    def infer(self, node: ast.expr, scope: _Scope, depth: int) -> InferredValues:  # noqa: C901, PLR0911  # one for each form
        """Return the possible values of an expression, and record its calls."""
        if isinstance(node, ast.Name):
            return scope.names[node.id] if node.id in scope.names else _look_up(scope.known, node.id)
        if isinstance(node, ast.Attribute):
            return self._attribute(self.infer(node.value, scope, depth), node.attr, depth)
        if isinstance(node, ast.Call):
            return self._call(node, scope, depth)
        if isinstance(node, ast.Await | ast.Starred | ast.NamedExpr | ast.YieldFrom):
            value = self.infer(node.value, scope, depth)
            if isinstance(node, ast.NamedExpr):
                self._bind(node.target, value, scope, depth)
            return value
        if isinstance(node, ast.Tuple):
            items = tuple(self.infer(part, scope, depth) for part in node.elts)
            return frozenset({InferredValue("tuple", None, None, items)}) if any(items) else NOTHING
        if isinstance(node, ast.Lambda):
            names = {argument.arg: NOTHING for argument in node.args.args}
            result = self.infer(node.body, _Scope(scope.known, scope.self_is, scope.names | names), depth)
            return frozenset({InferredValue("returns", None, None, (result,))})
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            return self._comprehension(node, scope, depth)
        if isinstance(node, ast.IfExp):
            self.infer(node.test, scope, depth)
            return self.infer(node.body, scope, depth) | self.infer(node.orelse, scope, depth)
        if isinstance(node, ast.Subscript):
            self.infer(node.slice, scope, depth)
            return self.infer(node.value, scope, depth)
        parts = [self.infer(child, scope, depth) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        if isinstance(node, ast.BoolOp | ast.List | ast.Set | ast.Dict):
            return frozenset().union(*parts)
        return NOTHING

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, scope: _Scope, depth: int
    ) -> InferredValues:
        inner = _Scope(scope.known, scope.self_is, dict(scope.names))
        for part in node.generators:
            self._bind(part.target, self.infer(part.iter, inner, depth), inner, depth)
            for condition in part.ifs:
                self.infer(condition, inner, depth)
        if isinstance(node, ast.DictComp):
            self.infer(node.key, inner, depth)
            return self.infer(node.value, inner, depth)
        return self.infer(node.elt, inner, depth)

    def _attribute(self, value: InferredValues, name: str, depth: int) -> InferredValues:
        result: InferredValues = NOTHING
        for thing in value:
            if thing.owner is None or thing.kind not in {"instance", "class"}:
                continue
            self.found.calls.add((thing.owner, name))
            result |= self._of_class(thing, name, depth)
        return result

    def _of_class(self, thing: InferredValue, name: str, depth: int) -> InferredValues:
        assert thing.owner is not None
        member = _member(thing.owner, name)
        if member is None:
            return self._field(thing.owner, name, depth)
        definition, function = member
        if _is(function, "property"):
            return self._called(definition, function, thing.owner, [], depth)
        return frozenset({InferredValue("method", thing.owner, (definition.file, name, function.lineno))})

    def _field(self, owner: ClassRef, name: str, depth: int) -> InferredValues:
        """Return the possible values of `self.name`, also of a delegate with `__getattr__`."""
        if (owner, name) not in self._fields:
            self._fields[owner, name] = NOTHING
            self._fields[owner, name] = self._find_field(owner, name, depth)
        return self._fields[owner, name]

    def _find_field(self, owner: ClassRef, name: str, depth: int) -> InferredValues:
        for one in class_hierarchy(owner):
            known = module(one.file)
            for node in known.classes[one.name].body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
                    return self.annotated(node.annotation, known)
                if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                    found = self._assigned_in(known, node, one, name, depth)
                    if found:
                        return found
        delegate = _member(owner, "__getattr__")
        if delegate is not None and not name.startswith("_") and delegate[0].file.is_relative_to(TESTS):
            for part in ast.walk(delegate[1]):
                if isinstance(part, ast.Call) and ast.unparse(part.func) == "getattr":
                    target = ast.unparse(part.args[0]).removeprefix("self.")
                    return self._attribute(self._field(owner, target, depth + 1), name, depth)
        return NOTHING

    def _assigned_in(
        self, known: Module, function: AnyFunction, owner: ClassRef, name: str, depth: int
    ) -> InferredValues:
        if depth > _MAX_DEPTH:
            return NOTHING
        scope = _Scope(known, owner, self._parameters(known, function, owner, []))
        for node in ast.walk(function):
            if isinstance(node, ast.AnnAssign) and _is_own(node.target, name):
                declared = self.annotated(node.annotation, known)
                return declared or (self.infer(node.value, scope, depth + 1) if node.value is not None else NOTHING)
            if isinstance(node, ast.Assign) and any(_is_own(target, name) for target in node.targets):
                return self.infer(node.value, scope, depth + 1)
        return NOTHING

    def _call(self, node: ast.Call, scope: _Scope, depth: int) -> InferredValues:
        if isinstance(node.func, ast.Name) and node.func.id == "cast":
            self.infer(node.args[1], scope, depth)
            return self.annotated(node.args[0], scope.known)
        callee = self.infer(node.func, scope, depth)
        given = [self.infer(argument, scope, depth) for argument in node.args]
        named = [self.infer(keyword.value, scope, depth) for keyword in node.keywords]
        result: InferredValues = NOTHING
        for thing in callee:
            result |= self._result(thing, given, depth)
        if not result:  # a function that only delegates returns the result of the function that it is given
            for one in frozenset().union(*given, *named):
                if one.kind == "returns":
                    result |= one.items[0]
                elif one.kind == "class":
                    result |= {InferredValue("instance", one.owner)}
                elif one.kind == "method" and not callee:
                    result |= self._result(one, [], depth)
        return result

    def _result(self, thing: InferredValue, given: list[InferredValues], depth: int) -> InferredValues:
        if thing.kind == "returns":
            return thing.items[0]
        if thing.kind == "class" and thing.owner is not None:
            made = _member(thing.owner, "__init__")
            if made is not None and made[0].file.is_relative_to(TESTS):
                self.enter(module(made[0].file), made[1], thing.owner, given, depth + 1)
            return frozenset({InferredValue("instance", thing.owner)})
        if thing.function is None:
            return NOTHING
        file, _, line = thing.function
        return self._called(ClassRef(file, ""), _function_at(file, line), thing.owner, given, depth)

    def _called(
        self, home: ClassRef, function: AnyFunction, owner: ClassRef | None, given: list[InferredValues], depth: int
    ) -> InferredValues:
        known = module(home.file)
        result: InferredValues = NOTHING
        if home.file.is_relative_to(TESTS):
            result = self.enter(known, function, owner, given, depth + 1)
        declared = self.annotated(function.returns, known)
        if not declared and owner is not None and "Self" in ast.unparse(function.returns or ast.Constant("")):
            declared = frozenset({InferredValue("instance", owner)})
        return declared or result


def _is_own(node: ast.expr, name: str) -> bool:
    """Return whether a node is `self.name`."""
    return ast.unparse(node) == f"self.{name}"


def _item(value: InferredValues, position: int, count: int) -> InferredValues:
    """Return the value at one position of an unpacked value."""
    result: InferredValues = NOTHING
    for thing in value:
        if thing.kind != "tuple":
            result |= {thing}
        elif len(thing.items) == count:
            result |= thing.items[position]
        else:
            result = result.union(*thing.items)
    return result


def _conftests(file: Path) -> Iterator[Module]:
    for folder in file.parents:
        if (folder / "conftest.py").exists():
            yield module(folder / "conftest.py")
        if folder == TESTS:
            return


@cache
def calls_of(file: Path, name: str) -> FoundCalls:
    """Return the calls of a test: `test_name`, or `TestClass::test_name`."""
    known, owner = module(file), None
    if "::" in name:
        kind, _, name = name.partition("::")
        owner = ClassRef(file, kind)
        member = _member(owner, name)
        assert member is not None, f"{file} has no {kind}.{name}"
        function = member[1]
    else:
        assert name in known.functions, f"{file} has no {name}"
        function = known.functions[name]
    found = FoundCalls()
    walk = _Walk(found)
    walk.enter(known, function, owner, [], 0)
    _use_fixtures(walk, known, function, set())
    return found


def _use_fixtures(walk: _Walk, known: Module, function: AnyFunction, used: set[str]) -> None:
    for argument in [*function.args.args, *function.args.kwonlyargs]:
        if argument.arg in used:
            continue
        used.add(argument.arg)
        for place in (known, *_conftests(known.file)):
            found = [thing for thing in _look_up(place, argument.arg) if thing.kind == "function"]
            if found:
                assert found[0].function is not None
                file, _, line = found[0].function
                fixture = _function_at(file, line)
                walk.enter(module(file), fixture, None, [], 0)
                _use_fixtures(walk, module(file), fixture, used)
                break
