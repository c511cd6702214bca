"""The edges in docs/states.md match the scripts, and the pictures match the edges."""

from __future__ import annotations

import re

import pytest

from docs.generated.diagrams import FOLDER, pictures
from docs.generated.edges import Edge, tables
from redis_queue.store.script_files import load
from tests.support.lua import CALL, Text, names

MESSAGE, ENTRY, CELERY = tables()
ALL = [*MESSAGE, *ENTRY, *CELERY]

# The names of the scripts' keys in the tables. Delayed messages and waiting entries have the same key.
STATES = {
    "ready": {"ready"},
    "waiting": {"delayed", "waiting"},
    "in_flight": {"in flight"},
    "dead": {"dead"},
    "quarantine": {"quarantine"},
    "place": {"ready", "delayed", "waiting", "dead"},
    "index": {"in flight"},
    "list": {"queued"},
    "target": {"queued"},
}
PLACED = {"ZADD", "LPUSH", "RPUSH"}
REMOVED = {"ZREM", "LREM", "LTRIM", "LPOP", "RPOP"}
# The broker's lists and sorted sets, which adopt reads and move_due and deliver write, are not states of a message or
# entry.
ELSEWHERE = {"delay/adopt": {"index"}, "delay/deliver": {"list"}, "delay/move_due": {"list"}}

# Writes that put undoes when the server refuses the rest.
UNDONE = {"queue/put": {"waiting"}}


def touched(script: str, commands: set[str]) -> set[str]:
    """Return the keys that *commands* in a script write."""
    found = [
        (re.findall(r"[A-Z]+", command)[0], key)
        for command, key in CALL.findall(Text(script).rest)
        if "TIME" not in command
    ]
    places = {key for command, key in found if command in commands and key in STATES}
    return places - ELSEWHERE.get(script, set())


def movers() -> list[str]:
    return [name for name in names() if touched(name, PLACED | REMOVED)]


def test_the_scripts_of_the_edges_are_those_that_move_entries() -> None:
    assert {edge.script for edge in ALL if edge.script} == {*movers()}
    assert len(movers()) > 20


@pytest.mark.parametrize("script", movers())
def test_the_targets_of_edges_match_their_script(script: str) -> None:
    ends = {edge.target for edge in ALL if edge.script == script}
    placed = touched(script, PLACED)
    for place in placed:
        assert STATES[place] & ends, f"{script} writes to {place}: no edge ends there"
    reachable = {state for place in placed for state in STATES[place]} | {"gone"}
    assert ends <= reachable
    # Messages in lists of Celery have no records.
    deletes = re.search(r"'HDEL', (?:records|unacked)|'(?:LREM|LTRIM|RPOP)', list", load(script).source)
    assert "gone" not in ends or deletes, f"{script} deletes no records"


@pytest.mark.parametrize("script", movers())
def test_the_sources_of_edges_match_their_script(script: str) -> None:
    starts = {edge.source for edge in ALL if edge.script == script and edge.source not in ("new", "nowhere")}
    removed = touched(script, REMOVED) - UNDONE.get(script, set())
    for place in removed:
        assert STATES[place] & starts, f"{script} removes from {place}: no edge starts there"
    # A source without removal is allowed for an edge that ends where it starts.
    stays = {edge.source for edge in ALL if edge.script == script and edge.source == edge.target}
    assert starts <= {state for place in removed for state in STATES[place]} | stays


@pytest.mark.parametrize("edges", [MESSAGE, ENTRY], ids=["message", "entry"])
def test_only_the_purge_of_quarantine_has_no_script(edges: list[Edge]) -> None:
    assert [edge for edge in edges if not edge.script] == [Edge("quarantine", "gone", "purge", "")]
    assert len(set(edges)) == len(edges)


@pytest.mark.parametrize("name", pictures())
def test_the_pictures_are_drawn_from_the_tables(name: str) -> None:
    drawn = (FOLDER / name).read_text("utf-8")
    assert drawn == pictures()[name], "run python -m docs.generated.diagrams"
    edges = MESSAGE if "message" in name else ENTRY
    assert drawn.count('class="edge"') == len({(edge.source, edge.target) for edge in edges})
