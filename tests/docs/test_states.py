"""The edges in docs/states.md are what the scripts do, and the pictures show them."""

from __future__ import annotations

import re

import pytest

from docs.generated.diagrams import FOLDER, pictures
from docs.generated.edges import Edge, tables
from redis_queue.store.script_files import load
from tests.support.lua import CALL, Text, names

MESSAGE, ENTRY, CELERY = tables()
ALL = [*MESSAGE, *ENTRY, *CELERY]

# How the keys of the scripts are called in the tables. A message that is delayed and an entry stand in the same key.
STATES = {
    "ready": {"ready"},
    "waiting": {"delayed", "waiting"},
    "in_flight": {"in flight"},
    "dead": {"dead"},
    "quarantine": {"quarantine"},
    "place": {"ready", "delayed", "waiting", "dead"},
    "index": {"in flight"},
    "list": {"queued"},
}
PLACED = {"ZADD", "LPUSH", "RPUSH"}
REMOVED = {"ZREM", "LREM", "LTRIM", "LPOP", "RPOP"}
# What adopt takes out of a broker, and where move_due and deliver put it, is neither a message's place nor an entry's.
ELSEWHERE = {"delay/adopt": {"index"}, "delay/deliver": {"list"}}

# What put takes out again when the server refused the rest of it.
UNDONE = {"queue/put": {"waiting"}}


def touched(script: str, commands: set[str]) -> set[str]:
    """Return the places that a script puts something into, or takes it out of."""
    found = [
        (re.findall(r"[A-Z]+", command)[0], key)
        for command, key in CALL.findall(Text(script).rest)
        if "TIME" not in command
    ]
    places = {key for command, key in found if command in commands and key in STATES}
    return places - ELSEWHERE.get(script, set())


def movers() -> list[str]:
    """Return the scripts that move something."""
    return [name for name in names() if touched(name, PLACED | REMOVED)]


def test_each_script_that_moves_something_is_an_edge_and_no_other() -> None:
    assert {edge.script for edge in ALL if edge.script} == {*movers()}
    assert len(movers()) > 20


@pytest.mark.parametrize("script", movers())
def test_an_edge_ends_where_its_script_puts_something(script: str) -> None:
    ends = {edge.target for edge in ALL if edge.script == script}
    placed = touched(script, PLACED)
    for place in placed:
        assert STATES[place] & ends, f"{script} puts something into {place}"
    reachable = {state for place in placed for state in STATES[place]} | {"gone"}
    assert ends <= reachable
    assert "gone" not in ends or gives_up(script), f"{script} takes nothing out for good"


@pytest.mark.parametrize("script", movers())
def test_an_edge_begins_where_its_script_takes_something_out(script: str) -> None:
    starts = {edge.source for edge in ALL if edge.script == script and edge.source not in ("new", "nowhere")}
    removed = touched(script, REMOVED) - UNDONE.get(script, set())
    for place in removed:
        assert STATES[place] & starts, f"{script} takes something out of {place}"
    # Who stays where it was is not taken out.
    stays = {edge.source for edge in ALL if edge.script == script and edge.source == edge.target}
    assert starts <= {state for place in removed for state in STATES[place]} | stays


@pytest.mark.parametrize("edges", [MESSAGE, ENTRY], ids=["message", "entry"])
def test_what_has_no_script_is_only_the_end_of_the_quarantine(edges: list[Edge]) -> None:
    assert [edge for edge in edges if not edge.script] == [Edge("quarantine", "gone", "purge", "")]
    assert len(set(edges)) == len(edges)


@pytest.mark.parametrize("name", pictures())
def test_the_pictures_are_drawn_from_the_tables(name: str) -> None:
    drawn = (FOLDER / name).read_text("utf-8")
    assert drawn == pictures()[name], "run python -m docs.generated.diagrams"
    edges = MESSAGE if "message" in name else ENTRY
    assert drawn.count('class="edge"') == len({(edge.source, edge.target) for edge in edges})


def gives_up(script: str) -> bool:
    """Tell whether a script deletes records."""
    return bool(re.search(r"'HDEL', (?:records|unacked)", load(script).source))
