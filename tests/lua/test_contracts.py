"""The header of each script is its contract: it names the keys and arguments in order, and the body keeps the rules."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from datetime import datetime, timezone
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from docs.generated.contracts import header
from redis_queue import DelayQueue, Lock, RedisQueue
from redis_queue.basics.histogram import Histogram
from redis_queue.delay.dispatch_log import DispatcherRow
from redis_queue.delay.model import Delivery, Dispatched, ForeignMessage, Push
from redis_queue.doctor import repair
from redis_queue.keeper.renewal import LeaseIndex, Renewer
from redis_queue.monitor.failures import Failures
from redis_queue.monitor.model import Failure, Run, RunningTask, Series, Tally, WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.schedules.definition import Definition
from redis_queue.schedules.state import State
from redis_queue.schedules.store import Change, ScheduleStore
from redis_queue.store import keys as keys_module
from redis_queue.store.keys import FlowKeys, Keys, MonitorKeys, ScheduleKeys
from redis_queue.store.records import Records
from redis_queue.store.script_files import KINDS, Script, load
from redis_queue.store.scripts import BoundScript
from tests.support.lua import CALL, FOLDER, Text, includes, names
from tests.support.servers import RedisServer
from tests.support.store.stage import Copy, Stage
from tests.support.wait import must

MAX_LINES = 150
FOLDERS = ("admission", "broker", "delay", "lock", "monitor", "queue", "records", "schedules")
_FLOW_SCRIPTS = ("configure", "purge", "reconsider", "remove", "restore", "send", "set_key", "settle", "take")
OF_FLOWS = tuple(f"admission/{name}" for name in _FLOW_SCRIPTS)
HOSTILE_NAME = "a{b}:c d*[é]?"


@pytest.fixture(params=names())
def name(request: pytest.FixtureRequest) -> str:
    """The name of each script in turn."""
    return str(request.param)


@pytest.fixture
def text(name: str) -> Text:
    return Text(name)


def test_the_scripts_are_found_as_package_data() -> None:
    assert {name.partition("/")[0] for name in names()} == set(FOLDERS)
    assert names() == sorted(
        str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.glob("*/*.lua") if path not in includes()
    )
    assert all(entry.is_dir() or entry.name == "__init__.py" for entry in FOLDER.iterdir())


def test_the_code_calls_every_script_and_no_unknown_ones() -> None:
    package = Path(str(files("redis_queue")))
    code = "\n".join(path.read_text("utf-8") for path in package.rglob("*.py"))
    assert sorted(set(re.findall(rf'"((?:{"|".join(FOLDERS)})/\w+)"', code))) == names()


def test_the_header_lists_keys_then_arguments_with_their_kinds(text: Text) -> None:
    assert text.header[0].startswith("-- ")
    assert text.header[0].endswith(".")
    listed = [line.split() for line in text.header if line.startswith(("-- KEYS ", "-- ARGV "))]
    assert [words[1] for words in listed] == sorted((words[1] for words in listed), reverse=True)
    assert [(words[2], words[3]) for words in listed if words[1] == "ARGV"] == list(text.kinds.items())
    names = [*text.keys, *text.kinds]
    assert len(set(names)) == len(names)
    assert not [kind for kind in list(text.kinds.values())[:-1] if kind in ("LIST", "TAIL")], "only the last one"


def test_the_prologue_binds_the_names_of_the_header_on_the_line_of_its_keys(text: Text) -> None:
    slots = [f"KEYS[{number}]" for number in range(1, len(text.keys) + 1)]
    slots += [f"ARGV[{number}]" for number in range(1, len(load(text.name).arguments) + 1)]
    assert re.findall(r"\w+\[\d+\]", text.prologue) == slots
    assert text.prologue.startswith(f"local {', '.join([*text.keys, *text.kinds])}")
    lines = text.file.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("-- KEYS "))
    assert (
        text.source.splitlines()[: len(text.header)]
        == [*lines[:at], text.prologue, *lines[at + 1 :]][: len(text.header)]
    )


READ_AS: dict[str, Any] = {"TEXT": b"1", "LIST": [b"1", b"2"], "TAIL": [b"1", b"2"]}
"""The reply with an argument as it was read; of other kinds it is the number 1."""


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_argument_is_read_as_it_says(
    kind: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "queue").mkdir()
    code = f"-- Odd.\n--\n-- KEYS meta\n-- ARGV value  {kind}  of it\n\nreturn value\n"
    (tmp_path / "queue" / "odd.lua").write_text(code)
    monkeypatch.setattr("redis_queue.store.script_files._LUA", tmp_path)
    assert client.eval(Script("queue/odd").source, 1, "meta", "1", "2") == READ_AS.get(kind, 1)


def test_names_of_the_header_are_used_and_not_bound_again(text: Text) -> None:
    assert not re.search(r"\b(KEYS|ARGV)\b", text.rest)
    for label in [*text.keys, *text.kinds]:
        assert re.search(rf"\b{label}\b", text.rest), f"{label} is never used"
        assert not re.search(rf"^local (?:\w+, )*{label}\b", text.rest, re.MULTILINE), f"{label} is bound again"
    for label, kind in text.kinds.items():
        assert "tonumber" not in KINDS[kind] or f"tonumber({label})" not in text.file, f"{label} is a number"


def test_each_key_is_declared_with_one_type() -> None:
    found: dict[str, set[str]] = {}
    for owner in keys_module.KEY_GROUPS:
        for label, key in owner.declarations().items():
            found.setdefault(label, set()).add(key.type)
    assert {label: types for label, types in found.items() if len(types) > 1} == {}
    used = {label for name in names() for label in load(name).keys}
    # The key of the place that a purge empties is one of three.
    assert used - set(found) == {"place"}


def test_arguments_in_time_have_its_kind(text: Text) -> None:
    in_time = {"now", "lease", "delay", "due", "older_than", "within", "after", "gap", "ttl", "timeout", "age"}
    for label, kind in text.kinds.items():
        assert (kind in ("TIME", "MS")) == (label in in_time | {"latest", "sum", "worst"}), label


def test_the_header_has_the_return_value_and_the_complexity(text: Text) -> None:
    header = "\n".join(text.header)
    assert re.search(r"^-- Returns ", header, re.MULTILINE)
    assert re.fullmatch(r"-- O\(.+\)", text.header[-1])


def test_the_file_is_short(text: Text) -> None:
    assert max(map(len, text.file.splitlines())) <= 120
    assert len(text.file.splitlines()) <= MAX_LINES
    assert text.file.endswith("\n")


def words_of(kind: str, include: Path) -> list[str]:
    """Return the names after *kind* (Needs, Sets, Defines) in the header of an include."""
    header = " ".join(line.removeprefix("--").strip() for line in include.read_text().splitlines() if line[:2] == "--")
    listed = re.search(rf"\b{kind} (.*?)\.(?: |$)", header)
    return re.findall(r"(?:^|, )(\w+)(?=[,:]|$)", re.sub(r"\([^)]*\)", "", listed[1])) if listed else []


def assigned(code: str) -> set[str]:
    """Return the names that Lua code defines, without function parameters and loop variables."""
    lists = re.findall(r"\blocal (?:function )?([\w, ]+)", code)
    return {name.strip() for names in lists for name in names.split(",")}


@pytest.mark.parametrize("include", includes(), ids=lambda path: path.stem)
class TestInclude:
    def test_the_header_names_the_definitions(self, include: Path) -> None:
        code = "\n".join(include.read_text().splitlines()[len(header(f"includes/{include.stem}")) :])
        defined = words_of("Defines", include)
        assert set(defined) <= assigned(code)
        for name in words_of("Needs", include) + words_of("Sets", include):
            assert re.search(rf"\b{name}\b", code), name
        tops = assigned("\n".join(line for line in code.splitlines() if line.startswith("local")))
        assert tops - set(defined) <= {"size", "fits", "earliest"}, "a name that the header does not mention"

    def test_each_script_defines_what_it_needs_and_uses_its_definitions(self, include: Path) -> None:
        users = [text for text in map(Text, names()) if include.stem in text.included()]
        is_long = any(len(text.source.splitlines()) > MAX_LINES for text in users)
        assert len(users) > 1 or is_long, "code of a single script belongs into that script"
        for text in users:
            before, line, after = re.split(rf"( *-- include .*\b{include.stem}\b.*\n)", text.file, maxsplit=1)
            earlier, later = line.split(include.stem, maxsplit=1)
            before, after = before + earlier, later + after
            known = assigned(before) | {*text.keys, *text.kinds, "FIRST", "id"}
            known |= {name for path in includes() if named(path, before) for name in defines(path)}
            assert set(words_of("Needs", include)) <= known, text.name
            after += "".join(path.read_text() for path in includes() if named(path, after))
            used = [name for name in defines(include) if re.search(rf"\b{name}\b", after)]
            assert used or not defines(include) or "error_reply" in include.read_text(), text.name

    def test_it_includes_nothing(self, include: Path) -> None:
        assert "-- include" not in include.read_text()


def defines(include: Path) -> list[str]:
    return words_of("Defines", include)


def named(include: Path, code: str) -> bool:
    """Return whether a line of *code*, or the part of one, includes it."""
    return re.search(rf"^(?: *-- include |, ).*\b{include.stem}\b", code, re.MULTILINE) is not None


def test_an_unknown_include_is_named_with_file_and_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder in ("queue", "includes"):
        (tmp_path / folder).mkdir()
    (tmp_path / "queue" / "odd.lua").write_text("-- Odd.\n-- KEYS meta\n\n-- include clocks\nreturn meta\n")
    monkeypatch.setattr("redis_queue.store.script_files._LUA", tmp_path)
    with pytest.raises(LookupError, match=r"^lua/queue/odd\.lua:4: unknown include 'clocks'$"):
        Script("queue/odd")


def test_no_slow_unsafe_or_lossy_calls(text: Text) -> None:
    commands = {command for found in CALL.findall(text.rest) for command in re.findall(r"[A-Z]+", found[0])}
    assert not commands & {"KEYS", "SCAN", "HSCAN", "SSCAN", "ZSCAN", "HGETALL", "HVALS", "HKEYS", "RANDOMKEY", "SORT"}
    assert not [command for command in commands if command.startswith("FLUSH")]
    assert not re.search(r"\b(cjson|cmsgpack|struct|loadstring|dofile|tostring|math\.random|os\.time)\b", text.rest)
    assert not re.search(r"\bLRANGE', \w+, 0, -1\b", text.rest)


def test_records_are_read_one_by_one(text: Text) -> None:
    # The size of records is not known in advance: a command that reads many reads any number of bytes.
    assert not re.search(r"'H(?:MGET|GETALL|VALS)', records\b", text.rest)
    if re.search(r"for .*\n(?:  .*\n)*?.*'HGET', records\b", text.rest):
        assert "MAX_BYTES" in text.rest, "a loop over records must end at a number of bytes"


def test_every_command_is_spelled_out_and_names_a_declared_key(name: str, text: Text) -> None:
    declared = set(text.keys)
    # Cancel chooses between two declared keys; the keys of a broker in the same Redis are the documented exception.
    others = {
        "delay/cancel": {"place", "notes"},
        "admission/cancel": {"place"},
        "delay/move_due": {"destination", "list"},
        "delay/deliver": {"list", "key"},
    }
    others |= {
        "delay/adopt": {"key", "index"},
        "broker/fetch": {"list", "several", "idle", ""},
        "broker/leave": {"idle"},
    }
    others |= {"broker/restore": {"list"}, "broker/depth": {"list"}, "broker/sizes": {"list"}}
    others |= {"monitor/count": {"ring", "of_day", "of_span"}}
    others |= {"monitor/failure_keep": {"key"}, "monitor/report": {"key"}}
    if name in OF_FLOWS:
        # Keys of rings and groups, named after the first key of flows.
        others[name] = {
            "list",
            "ring",
            "open_rings",
            "timers",
            "blocked",
            "offers",
            "keys",
            "weights",
            "of_keys",
            "signals",
            "told",
            "several",
            "idle",
            # PUBSUB has a channel.
            "",
        }
    if name == "delay/lead":
        # PUBSUB has a channel.
        others[name] = {""}
    if name == "admission/purge":
        others[name].add("target")
    if name.startswith("admission/"):
        others.setdefault(name, set()).add("by_id")
    declared |= others.get(name, set())
    calls = CALL.findall(text.rest)
    assert len(calls) == len(re.findall(r"redis\.p?call\(", text.rest))
    for command, first in calls:
        assert first in declared or command == "'TIME'", f"{command} {first}"


def test_the_clock_is_read_at_most_once_and_only_without_now(text: Text) -> None:
    assert text.rest.count("'TIME'") == text.source.count("redis.call('TIME')") <= 1
    assert ("now" in text.kinds) == ("if now == 0 then\n" in text.rest) == ("'TIME'" in text.rest)


def test_numbers_are_written_without_an_exponent(text: Text) -> None:
    # Lua writes a time as 1.7e+12, so all computed times are formatted with %.0f.
    for line in text.rest.splitlines():
        if "call(" in line or ".." in line:
            assert not re.search(r"\bnow\b", re.sub(r"string\.format\('[^']*%.0f[^']*', [^)]*\)", "", line)), line


@pytest.mark.parametrize("name", [name for name in names() if "NEWER_SCHEMA" in load(name).source])
def test_newer_data_is_refused_before_anything_is_written(name: str) -> None:
    text = Text(name)
    writes = re.search(r"redis\.call\('(?:H(?:SET|DEL|INCRBY)|[LR]PUSH|Z(?:ADD|REM)|SET|DEL|LTRIM)'", text.rest)
    assert writes
    assert text.rest.index("NEWER_SCHEMA") < writes.start()


def test_the_server_and_the_client_have_the_same_sha(name: str, client: redis.Redis) -> None:
    script = load(name)
    assert client.script_load(script.source) == script.sha


IN_ONE_REDIS = (*OF_FLOWS, "broker/", "lock/", "admission/cancel")
"""Scripts whose keys have several hash tags, or that exist in no Cluster."""


@pytest.mark.parametrize("name", [name for name in names() if not name.startswith(IN_ONE_REDIS)])
def test_all_keys_of_a_call_are_in_one_cluster_slot(name: str) -> None:
    script = load(name)
    of_queues = (Keys("p{r}e:fix", "queue", HOSTILE_NAME), Keys("p{r}e:fix", "delay", HOSTILE_NAME, 3))
    first = of_queues[1]
    of_schedules = ScheduleKeys(first)
    vars(of_schedules).update({name: getattr(first, name) for name in ("meta", "records", "waiting", "wake", "slot")})
    others: dict[str, tuple[object, ...]] = {
        "admission": (FlowKeys("p{r}e:fix"),),
        "monitor": (MonitorKeys("p{r}e:fix"),),
        "schedules": (of_schedules,),
    }
    for keys in others.get(name.partition("/")[0], of_queues):
        other = getattr(keys, "dead", b"")
        bound = [keys.slot("thread") if key == "slot" else getattr(keys, key, other) for key in script.keys]
        assert len({key_slot(key) for key in bound}) == 1
        assert len(set(bound)) == len(bound) or name == "records/purge"


def test_no_argument_makes_a_script_endless(name: str, server: RedisServer) -> None:
    """A user with permission to run the scripts chooses their arguments."""
    script = load(name)
    kind, shard = ("delay", 0) if name.startswith("delay/") else ("queue", None)
    keys = Keys("redis_queue", kind, "orders", shard)
    bound = [keys.slot("caller") if key == "slot" else getattr(keys, key, key.encode()) for key in script.keys]
    with server.client(socket_timeout=4.0) as client:
        client.flushall()
        Stage(client)
        stage = Copy(client)
        client.script_load(script.source)
        plain = ["1"] * (len(script.arguments) + 8 * script.takes_more)
        for number in range(len(plain)):
            stage.restore()
            for hostile in ("1e300", "-1e300", "1e18", "inf", "-inf", "nan", "-1", "0.5", ""):
                arguments = [*plain[:number], hostile, *plain[number + 1 :]]
                # An error is accepted; a missing answer is a TimeoutError.
                with contextlib.suppress(redis.ResponseError):
                    client.evalsha(script.sha, len(bound), *bound, *arguments)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[bytes]]]:
    """The keys of every script call, by script."""
    made: dict[str, list[list[bytes]]] = {}
    original = BoundScript.__call__

    def record(self: BoundScript, **arguments: Any) -> Any:
        made.setdefault(self._script.name, []).append(self._keys)
        return original(self, **arguments)

    monkeypatch.setattr(BoundScript, "__call__", record)
    return made


def test_renewing_uses_the_keys_of_the_broker(client: redis.Redis, calls: dict[str, list[list[bytes]]]) -> None:
    Renewer(client, LeaseIndex(b"index", b"lease_ends", 60.0, 1)).renew({})
    assert calls == {"broker/renew": [[b"index", b"lease_ends"]]}


def test_locking_uses_keys_of_one_slot(client: redis.Redis, calls: dict[str, list[list[bytes]]]) -> None:
    lock = Lock(HOSTILE_NAME, client, prefix="p{r}e:fix")
    with lock.hold() as held:
        held.check()
        assert lock.acquire() is None
        check_types(client, calls)
    assert sorted(calls) == [name for name in names() if name.startswith("lock/")]
    assert len({key_slot(key) for made in calls.values() for keys in made for key in keys}) == 1


def test_reporting_uses_keys_of_one_slot(client: redis.Redis, calls: dict[str, list[list[bytes]]]) -> None:
    now = datetime.now(timezone.utc)
    run = Run("id", "task", "queue", "worker", "succeeded", now)
    task = RunningTask("id", "task", "queue", "worker", now)
    reports = Reports(client, "p{r}e:fix")
    reports.write(WorkerRow("worker", now, now), [task], {Series("task", "queue"): Tally(1)}, [run])
    failure = Failure("id", "task", "queue", "worker", now)
    failures = Failures(client, "p{r}e:fix")
    failures.keep([failure, replace(failure, id="other")], 10, 7, missed=1)
    failures.claim([failure], "token")
    check_types(client, calls)
    failures.delete([failure], "token")
    assert sorted(calls) == [name for name in names() if name.startswith("monitor/")]
    assert len({key_slot(key) for made in calls.values() for keys in made for key in keys}) == 1


def check_types(client: redis.Redis, calls: dict[str, list[list[bytes]]]) -> None:
    """Compare the types of the keys in *calls* with the headers."""
    for name, made in calls.items():
        for keys in made:
            for key, label in zip(keys, load(name).keys, strict=True):
                kind = client.type(key).decode().upper()
                assert label == "place" or kind in ("NONE", keys_module.TYPES[label]), (name, key)


def read_all(queue: RedisQueue) -> None:
    """Call every read of *queue*."""
    queue.peek()
    queue.look("any")
    queue.versions(["any"])
    queue.in_flight()
    queue.dead_letters()
    queue.stats()


def keep_counts(timed: DelayQueue) -> None:
    timed.moves.lead("me", 60)
    row = DispatcherRow("me", datetime.now(timezone.utc), True, "1", 1, 0, "")
    timed.dispatch_log.note(Dispatched(1, 0, Histogram.of([7])), dispatcher=row)
    timed.dispatch_log.minutes()
    assert timed.dispatch_log.dispatchers()


def test_every_method_uses_keys_of_one_slot_and_of_the_documented_type(
    client: redis.Redis, calls: dict[str, list[list[bytes]]]
) -> None:
    queue = RedisQueue(HOSTILE_NAME, client, max_deliveries=1)
    queue.put_many([1, 2, 3])
    queue.put(4, delay=60)
    message, *others = queue.get_many(3)
    assert queue.still_mine(message)
    assert queue.ack(message)
    queue.nack_many(others, dead=True)
    queue.redrive([others[0].id])
    queue.delete_dead([others[1].id])
    queue.promote()
    read_all(queue)
    timed = DelayQueue(HOSTILE_NAME, client, shards=2)
    timed.push_many([Push(number, id=f"e{number}", destination="target") for number in range(8)])
    timed.push("later", delay=60, id="later")
    entries = timed.claim(4)
    timed.extend(entries[0])
    timed.nack(entries[0])
    timed.put_back()
    timed.reschedule("later", delay=90)
    timed.get("later")
    timed.list()
    timed.count()
    timed.stats()
    timed.cancel("later")
    timed.revokes.note_revoked(["later"])
    timed.quarantined()
    timed.move_due()
    timed.moves.due_in()
    keep_counts(timed)
    timed.push("delivered")
    timed.moves.deliver([Delivery(entry, b"element", ["target"]) for entry in timed.claim()])
    timed.moves.bury_overdue(60, reason="late")
    client.lpush("foreign", "element")
    adopted = Push("adopted", id="adopted", due_at=datetime.now(timezone.utc))
    timed.foreign.adopt([(adopted, ForeignMessage(b"element", "foreign", -1))])
    timed.push("useless", delay=60)
    timed.purge("waiting")
    use_schedules(timed)
    # The only script that a healthy queue never calls.
    records: Records = queue._records
    queue.put("broken")
    broken = must(queue.get(block=False))
    assert records.quarantine(broken, "on purpose")

    timed.foreign.bury(Push("buried", id="buried"), reason="on purpose", deliveries=1)
    client.hset(Keys("redis_queue", "queue", HOSTILE_NAME).records, "nowhere", "v1 1 json 0 1\n5")
    repair(client, dry_run=False)

    elsewhere = ("admission/", "broker/", "lock/", "monitor/")
    assert sorted(calls) == [name for name in names() if not name.startswith(elsewhere)]
    assert all(len({key_slot(key) for key in keys}) == 1 for made in calls.values() for keys in made)
    check_types(client, calls)


def use_schedules(queue: DelayQueue) -> None:
    schedules = ScheduleStore(queue)
    run = Push("a run", id=schedules.run_id("nightly", 1), due_at=datetime.now(timezone.utc))
    definition = Definition("nightly", "t", [{"every": 1000}]).text()
    schedules.change([Change("nightly", b"", State("0" * 8, 1, 1), definition, look=1, message=run)])
    assert [stored.name for stored in schedules.due(10)[2]] == ["nightly"]
    assert schedules.set_versions("app", b"", ["1"], ["nightly"])


LOOKS = """
    broker/depth broker/look broker/sizes delay/count delay/dispatchers delay/find delay/head delay/list
    delay/minutes delay/stats queue/peek queue/stats records/dead_letters records/in_flight records/look
    records/quarantined records/recordless records/tally records/versions schedules/read
"""


def test_read_only_scripts_are_marked() -> None:
    assert {name for name in names() if not load(name).writes} == set(LOOKS.split())
