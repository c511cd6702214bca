"""Reference of public classes and functions, from their docstrings."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, get_args

from docs.generated.tables import markdown, prose

SOURCES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "api-core": ("redis_queue", ()),
    "api-moves": ("redis_queue.delay.moves", ("Moves",)),
    "api-dispatch-log": ("redis_queue.delay.dispatch_log", ("DispatchLog",)),
    "api-foreign": ("redis_queue.delay.moves", ("Foreign",)),
    "api-entries": ("redis_queue.delay.entries", ("EntryReader", "MarkedEntries", "Revokes")),
    "api-aio": ("redis_queue.aio", ("Consumer", "run")),
    "api-celery": ("redis_queue.celery", ()),
    "api-catalog": ("redis_queue.catalog", ("Catalog", "CatalogPage")),
    "api-inspector": ("redis_queue.operate.inspector", ("Inspector", "QueueRow", "Overview")),
    "api-metrics": ("redis_queue.operate.metrics", ("Collector",)),
    "api-doctor": ("redis_queue.doctor", ()),
    "api-web": ("redis_queue.web", ()),
    "api-testing": ("redis_queue.testing", ()),
    "api-flask": ("redis_queue.contrib.flask", ("FlaskDurableTasks",)),
}

WIDTH: Final = 90
_NEXT: Final = ",\n    "

Function = ast.FunctionDef | ast.AsyncFunctionDef


def names(source: str) -> list[str]:
    """Return the public names of a module without errors, which have their own page."""
    module, chosen = SOURCES[source]
    found = importlib.import_module(module)
    return [name for name in chosen or found.__all__ if not _is_error(getattr(found, name))]


def page(source: str) -> str:
    """Return a section for each public name."""
    module, _ = SOURCES[source]
    found = importlib.import_module(module)
    return "\n".join(_section(module, name, getattr(found, name)) for name in names(source))


def _section(module: str, name: str, thing: Any) -> str:
    if inspect.isclass(thing):
        text = _class(name, thing)
    elif inspect.isfunction(thing):
        text = _functions([_parsed(thing)])
    else:
        # The docstring of a value is the string after it in the source.
        text = f"{prose(_said_of(module, name))}\n"
    return f"### {name}\n\n{text}"


def _class(name: str, thing: type) -> str:
    tree = _parsed(thing)
    if dataclasses.is_dataclass(thing):
        lines = [f"class {name}:", *(f"    {_text(node)}" for node in tree.body if _is_field(node))]
    else:
        made = [node for node in _written(thing) if node.name == "__init__"]
        lines = [_call(f"class {name}", made[0]) if made else f"class {name}"]
    parts = [_block(lines), markdown(ast.get_docstring(tree) or "")]
    return "\n".join([*parts, *(_functions(group) for group in _members(thing))])


def _is_field(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not node.target.id.startswith("_")


def _members(thing: type) -> Iterator[list[Function]]:
    """Yield the public functions of a class; overloads are in one list."""
    found: dict[str, list[Function]] = {}
    for node in _written(thing):
        if not node.name.startswith("_"):
            found.setdefault(node.name, []).append(node)
    yield from found.values()


def _written(thing: type) -> Iterator[Function]:
    """Yield the functions of a class, then those that it inherits from other classes of redis_queue."""
    seen: set[str] = set()
    for base in thing.__mro__:
        own = _parsed(base).body if base.__module__.startswith("redis_queue") else []
        found = [node for node in own if isinstance(node, Function) and node.name not in seen]
        yield from found
        seen |= {node.name for node in found}


def _functions(group: list[Function]) -> str:
    """Return the signatures of a function or of its overloads, and the docstring of the last one."""
    shown = group[:-1] or group
    lines = [line for node in shown for line in _signature(node)]
    return f"{_block(lines)}\n{markdown(ast.get_docstring(group[-1]) or '')}"


def _signature(node: Function) -> Iterator[str]:
    decorators = [ast.unparse(each).rpartition(".")[2] for each in node.decorator_list]
    returns = f" -> {_text(node.returns)}" if node.returns else ""
    if any("property" in each.lower() for each in decorators):
        yield f"{node.name}{returns.replace(' ->', ':')}"
        return
    yield from (f"@{each}" for each in decorators if each in ("classmethod", "staticmethod", "contextmanager"))
    yield _call(node.name, node) + returns


def _call(name: str, node: Function) -> str:
    line = f"{name}({_arguments(node)})"
    return line if len(line) <= WIDTH else f"{name}(\n    {_arguments(node, _NEXT)},\n)"


def _arguments(node: Function, between: str = ", ") -> str:
    """Return the arguments of a function without ``self``."""
    found = node.args
    listed = [*found.posonlyargs, *found.args]
    defaults = [None] * (len(listed) - len(found.defaults)) + [*found.defaults]
    parts = [_argument(*pair) for pair in zip(listed, defaults, strict=True) if pair[0].arg not in ("self", "cls")]
    if found.vararg:
        parts.append(f"*{_argument(found.vararg, None)}")
    elif found.kwonlyargs:
        parts.append("*")
    parts += [_argument(*pair) for pair in zip(found.kwonlyargs, found.kw_defaults, strict=True)]
    if found.kwarg:
        parts.append(f"**{_argument(found.kwarg, None)}")
    return between.join(parts)


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    if default is None:
        return _text(argument)
    return f"{_text(argument)}{' = ' if argument.annotation else '='}{_text(default)}"


def _text(node: ast.AST) -> str:
    # As in the source, without the module of a type that a method of the same name hides.
    return re.sub(r"'([^'\"]*)'", r'"\1"', ast.unparse(node)).replace("builtins.", "")


def _block(lines: Iterable[str]) -> str:
    # A test runs blocks of "python".
    return "\n".join(["```py", *lines, "```", ""])


def _parsed(thing: Any) -> Any:
    """Return the syntax tree of a class or function as written in the source."""
    return ast.parse(inspect.cleandoc("\n" + inspect.getsource(thing))).body[0]


def _said_of(module: str, name: str) -> str:
    values = get_args(getattr(importlib.import_module(module), name))
    if values:
        return f"One of {', '.join(f'``{value!r}``' for value in values)}."
    for path in sorted(Path(str(files(module))).rglob("*.py")):
        statements = ast.parse(path.read_text("utf-8")).body
        for value, text in pairwise(statements):
            target = value.target if isinstance(value, ast.AnnAssign) else None
            if isinstance(target, ast.Name) and target.id == name and isinstance(text, ast.Expr):
                return " ".join(str(ast.literal_eval(text.value)).split())
    raise LookupError(f"{module}.{name} has no docstring: put a string after it")


def _is_error(thing: Any) -> bool:
    return inspect.isclass(thing) and issubclass(thing, BaseException) and thing.__module__ == "redis_queue.errors"


SNAPSHOT: Final = Path(__file__).parent.parent / "reference" / "api.txt"
"""The public names with their signatures, one in a line: `make api` writes it, and a test compares it with the code."""

_BLOCK_OF: Final = re.compile(r"^```py\n(.*?)^```", re.DOTALL | re.MULTILINE)


def snapshot() -> str:
    """Return the public names with their signatures, and the errors with their bases, one in a line."""
    lines = [line for module, chosen in SOURCES.values() for name in _public(module, chosen) for line in name]
    return "\n".join(sorted({*lines})) + "\n"


def _public(module: str, chosen: Iterable[str]) -> Iterator[list[str]]:
    found = importlib.import_module(module)
    for name in chosen or found.__all__:
        thing = getattr(found, name)
        first, *rest = _BLOCK_OF.findall(_section(module, name, thing)) or [f"{name}\n"]
        bases = f"({', '.join(base.__name__ for base in thing.__bases__)})" if _is_error(thing) else ""
        yield [f"{module}.{_one_line(first)}{bases}", *(f"{module}.{name}: {_one_line(each)}" for each in rest)]


def _one_line(block: str) -> str:
    return re.sub(r",? \)", ")", " ".join(block.split())).replace("( ", "(").removeprefix("class ")


MAKERS: Final[dict[str, Callable[[], str]]] = {source: partial(page, source) for source in SOURCES}
