"""Draw the diagrams of states.md from its tables: ``python -m docs.generated.diagrams``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final

from docs.generated.edges import Edge, tables

FOLDER: Final = Path(__file__).parent.parent / "images"

Point = tuple[float, float]

WIDTH: Final = 1000
HEIGHT: Final = 640
RX: Final = 62
RY: Final = 24

MESSAGE: Final[dict[str, Point]] = {
    "new": (90, 300),
    "nowhere": (90, 470),
    "delayed": (360, 110),
    "ready": (360, 300),
    "quarantine": (360, 560),
    "in flight": (660, 300),
    "dead": (660, 480),
    "gone": (910, 300),
}
ENTRY: Final[dict[str, Point]] = {
    "new": (90, 300),
    "nowhere": (90, 530),
    "waiting": (360, 300),
    "quarantine": (640, 580),
    "in flight": (640, 110),
    "dead": (440, 480),
    "gone": (910, 300),
}
# Bend of an edge to its right, as a fraction of its length; LITTLE for all others.
BENT: Final[dict[tuple[str, str], float]] = {
    ("ready", "gone"): -0.22,
    ("delayed", "gone"): -0.2,
    ("delayed", "quarantine"): 0.42,
    ("ready", "quarantine"): 0.12,
    ("quarantine", "gone"): 0.25,
    ("in flight", "quarantine"): -0.1,
    ("dead", "delayed"): -0.12,
    ("waiting", "quarantine"): -0.2,
    ("new", "dead"): 0.2,
    ("waiting", "dead"): 0.35,
    ("dead", "waiting"): 0.15,
    ("waiting", "gone"): -0.04,
}
LITTLE: Final = 0.1

STYLE: Final = (
    "text{font:13px sans-serif;fill:#222}"
    ".state{fill:#eef3fb;stroke:#3b6ea8;stroke-width:1.5}.outside{fill:#fff;stroke:#888;stroke-dasharray:4 3}"
    ".edge{fill:none;stroke:#555;stroke-width:1.2}.label{font-size:11.5px;paint-order:stroke;stroke:#fff;stroke-width:5px}"
)
OUTSIDE: Final = ("new", "gone", "nowhere")


def draw(title: str, states: Mapping[str, Point], edges: Sequence[Edge]) -> str:
    """Return an SVG of *states*, with an arrow and its verbs for each pair."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for edge in edges:
        known = verbs.setdefault((edge.source, edge.target), [])
        if edge.verb not in known:
            known.append(edge.verb)
    arrows = [_arrow(states, pair, ", ".join(names)) for pair, names in verbs.items()]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#fff"/>',
        *(line for line, _ in arrows),
        *(_state(name, at) for name, at in states.items()),
        *(label for _, label in arrows),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _state(name: str, at: Point) -> str:
    kind = "outside" if name in OUTSIDE else "state"
    x, y = at
    return (
        f'<ellipse class="{kind}" cx="{x:g}" cy="{y:g}" rx="{RX}" ry="{RY}"/>'
        f'<text x="{x:g}" y="{y + 4:g}" text-anchor="middle">{name}</text>'
    )


def _arrow(states: Mapping[str, Point], pair: tuple[str, str], text: str) -> tuple[str, str]:
    """Return the line of an edge, and its label, which is drawn above all lines."""
    start, end = states[pair[0]], states[pair[1]]
    if start == end:
        return _loop(start, text)
    middle = _control(start, end, BENT.get(pair, LITTLE))
    curve = [_at(start, middle, end, step / 200) for step in range(201)]
    outside = [point for point in curve if not _within(point, start) and not _within(point, end)]
    (x1, y1), (x2, y2) = outside[0], outside[-1]
    # A curve with the same control point, from the border of one state to the border of the other.
    drawn = f"M{x1:.1f} {y1:.1f}Q{middle[0]:.1f} {middle[1]:.1f} {x2:.1f} {y2:.1f}"
    return _line(drawn), _label(outside[len(outside) // 2], text)


def _loop(at: Point, text: str) -> tuple[str, str]:
    x, y = at
    low, high = y - RY + 1, y - RY - 44
    drawn = f"M{x - 22:g} {low:g}C{x - 40:g} {high:g} {x + 40:g} {high:g} {x + 22:g} {low:g}"
    return _line(drawn), _label((x, y - RY - 38), text)


def _line(drawn: str) -> str:
    return f'<path class="edge" marker-end="url(#tip)" d="{drawn}"/>'


def _label(at: Point, text: str) -> str:
    return f'<text class="label" x="{at[0]:.1f}" y="{at[1] + 4:.1f}" text-anchor="middle">{escape(text)}</text>'


def _control(start: Point, end: Point, bend: float) -> Point:
    dx, dy = end[0] - start[0], end[1] - start[1]
    return (start[0] + end[0]) / 2 - dy * bend * 2, (start[1] + end[1]) / 2 + dx * bend * 2


def _at(start: Point, middle: Point, end: Point, part: float) -> Point:
    left = 1 - part
    x, y = (left * left * start[i] + 2 * left * part * middle[i] + part * part * end[i] for i in (0, 1))
    return x, y


def _within(point: Point, centre: Point) -> bool:
    return math.hypot((point[0] - centre[0]) / (RX + 2), (point[1] - centre[1]) / (RY + 2)) < 1


def pictures() -> dict[str, str]:
    """Return the files and their contents."""
    message, entry, _ = tables()
    return {
        "states-message.svg": draw("States of a message", MESSAGE, message),
        "states-entry.svg": draw("States of an entry", ENTRY, entry),
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, svg in pictures().items():
        (FOLDER / name).write_text(svg, "utf-8")
