"""Print the shape of the package and fail if a number exceeds its limit in pyproject.toml, [tool.shape].

A limit is raised in a commit of its own that says what the growth pays for; a commit that removes something lowers it.

- files, lines: modules of redis_queue/.
- code_lines: without blanks, comments, docstrings and imports.
- micro_modules: modules of fewer than 40 code lines, without __init__.py.
- lua_lines: of the scripts and their includes.
- rooms, arrows: the modules and packages directly under redis_queue/, and the pairs of which one imports the other.
- circles: groups of modules that import each other, imports for types counted.
- test_lines: of tests/, chaos/ and proof/.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import grimp

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "redis_queue"
MICRO = 40
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def main() -> int:
    shape, limits = _shape(), tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["shape"]
    over = [name for name, number in shape.items() if number > limits[name]]
    for name, number in shape.items():
        print(f"{name:14}{number:8,}  at most {limits[name]:,}{'  <- too many' if name in over else ''}")
    return 1 if over else 0


def _shape() -> dict[str, int]:
    code = {path: _code_lines(path.read_text()) for path in PACKAGE.rglob("*.py")}
    rooms, arrows, circles = _imports()
    return {
        "files": len(code),
        "lines": _lines(code),
        "code_lines": sum(code.values()),
        "micro_modules": sum(lines < MICRO for path, lines in code.items() if path.name != "__init__.py"),
        "lua_lines": _lines(PACKAGE.rglob("*.lua")),
        "rooms": rooms,
        "arrows": arrows,
        "circles": circles,
        "test_lines": _lines(path for folder in ("tests", "chaos", "proof") for path in (ROOT / folder).rglob("*.py")),
    }


def _lines(paths: Iterator[Path] | dict[Path, int]) -> int:
    return sum(path.read_text().count("\n") for path in paths)


def _code_lines(text: str) -> int:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if is_text or isinstance(node, (ast.Import, ast.ImportFrom)):
            lines.difference_update(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def _imports() -> tuple[int, int, int]:
    graph = grimp.build_graph("redis_queue", cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    arrows = {(_room(module), _room(other)) for module, others in imported.items() for other in others}
    between = {(room, other) for room, other in arrows if room and other and room != other}
    return len({_room(module) for module in imported} - {""}), len(between), len(_circles(imported))


def _room(module: str) -> str:
    """Returns the name directly under the package; nothing for the package itself."""
    return module.partition(".")[2].partition(".")[0]


def _circles(imported: dict[str, set[str]]) -> set[frozenset[str]]:
    reached = {module: _reached(module, imported) for module in imported}
    return {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in imported
        if module in reached[module]
    }


def _reached(module: str, imported: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = list(imported[module])
    while waiting:
        other = waiting.pop()
        if other not in seen:
            seen.add(other)
            waiting.extend(imported[other])
    return seen


if __name__ == "__main__":
    sys.exit(main())
