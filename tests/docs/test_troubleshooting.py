"""The page of log lines has every line of the package at WARNING or above, and no other."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.docs.blocks import DOCS
from tests.support.paths import ROOT

LEVELS = {"warning", "error", "exception", "critical"}
ROW = re.compile(r"^\| (?P<lines>`.+?`) \| `(?P<name>[\w.]+)` \| ", re.MULTILINE)
ANY = re.compile(r"%(?:\(\w+\))?[\d.]*[a-zA-Z]|\{[^}]*\}|…")


@dataclass(frozen=True)
class Line:
    """What the source logs: *action* and *text* are regular expressions."""

    action: str
    text: str
    place: str


def wildcard(text: str) -> str:
    """Return a regular expression for a format string, or for a line of the page."""
    return ".*".join(map(re.escape, ANY.split(text)))


def values(node: ast.expr, function: ast.AST) -> Iterator[str]:
    """Yield regular expressions for the texts that *node* may be in *function*."""
    if isinstance(node, ast.Constant):
        yield wildcard(str(node.value))
    elif isinstance(node, ast.JoinedStr):
        parts = (wildcard(str(part.value)) if isinstance(part, ast.Constant) else ".*" for part in node.values)
        yield "".join(parts)
    elif isinstance(node, ast.Name):
        found = list(assigned(node.id, function))
        for value in found:
            yield from values(value, function)
        if not found:
            yield ".*"
    else:
        yield ".*"


def assigned(name: str, function: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Name) and target.id == name:
                yield node.value
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(target.elts, node.value.elts, strict=True)
                yield from (value for one, value in pairs if isinstance(one, ast.Name) and one.id == name)


def actions(call: ast.Call, function: ast.AST, place: str) -> Iterator[str]:
    extra = next((keyword.value for keyword in call.keywords if keyword.arg == "extra"), None)
    before = [node for node in assigned(getattr(extra, "id", ""), function) if node.lineno <= call.lineno]
    extra = max(before, key=lambda node: node.lineno, default=extra)
    assert isinstance(extra, ast.Dict), f"{place}: give it an action"
    (value,) = (
        value for key, value in zip(extra.keys, extra.values, strict=True) if getattr(key, "value", None) == "action"
    )
    return values(value, function)


def logged(tree: ast.Module, name: str) -> Iterator[Line]:
    """Yield the lines at WARNING or above of the module *name*."""
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        place = f"{name}:{node.lineno}"
        if isinstance(node.func, ast.Name) and node.func.id == "OutageLog":
            _, began, ended = map(ast.literal_eval, [ast.Constant(None), *node.args[1:]])
            action = ast.literal_eval(next(word.value for word in node.keywords if word.arg == "action"))
            yield Line(action, wildcard(f"{began}: …; trying again until it works"), place)
            yield Line(f"{action}_over", wildcard(ended), place)
        elif (
            isinstance(node.func, ast.Attribute)
            and node.func.attr in LEVELS
            and "log" in ast.unparse(node.func.value).lower()
        ):
            function = max(
                (one for one in functions if one.lineno <= node.lineno <= (one.end_lineno or 0)),
                key=lambda one: one.lineno,
            )
            for action in actions(node, function, place):
                for text in values(node.args[0], function):
                    yield Line(action, text, place)


@functools.cache
def source() -> tuple[Line, ...]:
    """Return the lines of the package; OutageLog is counted where it is made."""
    paths = sorted((ROOT / "redis_queue").rglob("*.py"))
    return tuple(
        line
        for path in paths
        if path.name != "logs.py"
        for line in logged(ast.parse(path.read_text("utf-8")), str(path.relative_to(ROOT)))
    )


def page() -> list[tuple[str, str]]:
    """Return the lines on the page, each with its action or module."""
    text = (DOCS / "troubleshooting.md").read_text("utf-8")
    rows = [(re.findall(r"`([^`]+)`", found["lines"]), found["name"]) for found in ROW.finditer(text)]
    return [(line, name) for lines, name in rows for line in lines]


def is_same(line: Line, shown: str, action: str) -> bool:
    """Return whether a row of the page shows *line*; either may have the wildcard."""
    return bool(re.fullmatch(line.action, action)) and bool(
        re.fullmatch(line.text, shown) or re.fullmatch(wildcard(shown), line.text.replace("\\", ""))
    )


def own_rows() -> list[tuple[str, str]]:
    return [(shown, name) for shown, name in page() if "." not in name]


def test_every_warning_and_error_is_on_the_page() -> None:
    assert len(source()) > 80
    rows = own_rows()
    missing = [line for line in source() if not any(is_same(line, *row) for row in rows)]
    assert not missing, missing


def test_every_line_on_the_page_is_in_the_source() -> None:
    unknown = [row for row in own_rows() if not any(is_same(line, *row) for line in source())]
    assert not unknown, unknown


def test_a_line_that_is_not_on_the_page_is_found() -> None:
    (line,) = logged(ast.parse('def f():\n  log.error("%s burns", 1, extra={"action": "fire"})'), "new.py")
    assert is_same(line, "… burns", "fire")
    assert not any(is_same(line, *row) for row in own_rows())


def test_the_lines_of_celery_and_kombu_are_those_of_the_installed_versions() -> None:
    rows = [(shown, name) for shown, name in page() if "." in name]
    assert len(rows) > 10
    for shown, name in rows:
        text = " ".join(inspect.getsource(importlib.import_module(name)).split())
        # A long text is several literals in the source.
        text = re.sub(r"""['"] f?['"]| \\ """, "", text).replace("\\", "")
        assert all(part.strip(" .:") in text for part in shown.split("…")), (shown, name)
