"""The explorer tells faults, its steps are those of a server, and the scripts have none within its reach."""

import json
import os
import random
import subprocess
from typing import Any

import pytest
import redis

from proof.explore import MODELS, Explorer, follow
from proof.model import ModelError
from proof.simulate.worlds import WORLDS
from tests.chaos.edits import MUTANTS, patched, python
from tests.support.paths import ROOT


def explore(name: str, root: Any, transitions: int) -> tuple[int, dict[str, Any], str]:
    """Return the exit code, the figures and the text of a run in a folder."""
    done = python(root, "proof.explore", name, "--transitions", str(transitions), "--quiet")
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stdout


def test_a_broken_promise_is_told_as_a_test() -> None:
    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == "put back and keep in flight (M4)")
    with patched(mutant) as folder:
        code, figures, text = explore("queue", folder, 100_000)

    assert (code, figures["violations"]) == (1, 1), text
    assert figures["transitions"] < 100_000
    assert '    wrong = follow(\n        "queue",\n' in text


@pytest.mark.parametrize("model", MODELS)
def test_nothing_is_broken_within_a_few_steps(model: str) -> None:
    code, figures, text = explore(model, ROOT, 20_000)

    assert (code, figures["violations"]) == (0, 0), text
    assert figures["transitions"] >= 20_000
    assert figures["states"] > 10_000


@pytest.mark.matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("command", "figure", "least"),
    [(["explore"], "transitions", 1_000_000), (["simulate", "SEEDS=1000:1050"], "schedules", 50 * len(WORLDS))],
    ids=["explore", "simulate"],
)
def test_the_share_of_a_change_breaks_nothing(command: list[str], figure: str, least: int) -> None:
    # As from a shell: a make that runs the tests would hand on its own flags and arguments.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "ARGS"))}
    done = subprocess.run(["make", *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    figures = json.loads(done.stdout.splitlines()[-1])

    assert (done.returncode, figures["violations"]) == (0, 0), done.stdout
    assert figures[figure] >= least


@pytest.mark.parametrize(
    ("model", "path"),
    [
        (
            "delay",
            "A stores replace; 1001 ms later; C claims; C publishes, reply lost; C gives up; C gives back; "
            "A stores replace",
        ),
        ("flow", "P sends m1; A takes 1; 1001 ms later; S sweeps; A renews; S returns flow-A05-001; A takes 1"),
        (
            "unique",
            "P acquires until end; P sends; Q acquires until end for later; Q stores, reply lost; Q gives up; "
            "Q withdraws; O cancels iA04; A takes 2",
        ),
        (
            "unique",
            "P acquires until end; P sends; Q acquires until end for later; Q stores, died; 10001 ms later; "
            "Q acquires until end; O cancels iA04; A takes 2",
        ),
        (
            "unique",
            "P acquires until end for later; P stores; P confirms; Q acquires until end, died; 10001 ms later; "
            "Q acquires until end; O cancels iA04",
        ),
        ("unique", "P acquires until end, reply lost; 10001 ms later; P again acquires until end; P sends"),
        ("unique", "P acquires until start, delayed; P again acquires until start; P sends; A takes 2"),
        (
            "unique",
            "P acquires until end for later; P stores; P confirms, reply lost; Q acquires until end; P again confirms",
        ),
        ("locks", "A takes; B takes, delayed; B again takes; A gives back; B late takes; B takes"),
        (
            "schedules",
            "P reads; P deletes; O reads versions; O reads; O checks; N reads versions; N declares; N reads; N checks; "
            "N puts; P reads; P deletes; O puts",
        ),
    ],
)
def test_what_was_lost_or_ran_twice_does_not(model: str, path: str) -> None:
    assert follow(model, *path.split("; ")) is None


def test_steps_can_be_followed() -> None:
    assert follow("queue", "A puts m1, reply lost", "A again puts m1", "B gets, died", "1001 ms later") is None
    with pytest.raises(LookupError, match="no such step: A sings"):
        follow("queue", "A sings")


@pytest.mark.parametrize("model", MODELS)
def test_a_server_answers_as_on_the_way(model: str, client: redis.Redis) -> None:
    explorer, dice = Explorer(model), random.Random(1)
    for _ in range(30):
        client.flushall()
        for first in explorer.start():
            client.execute_command(*first)
        calls, path = explorer.wander(12, lambda most: dice.randint(1, most))
        for source, keys, arguments, reply in calls:
            command = [source] if source.isalpha() else [b"EVAL", source, len(keys), *keys]
            if isinstance(reply, ModelError):
                with pytest.raises(redis.ResponseError, match=str(reply)):
                    client.execute_command(*command, *arguments)
            else:
                assert client.execute_command(*command, *arguments) == reply, path
