"""Mutants: copies of the code with one fault each, which the tests must find."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.chaos.edits import PACKAGE, Edit, Mutant, lua
from tests.chaos.runs import SEEDS, run
from tests.chaos.unique_mutants import UNIQUE_MUTANTS
from tests.support.paths import ROOT

COPIED: Final = (PACKAGE, "chaos", "tests", "tasks", "celeryconfig.py", "pyproject.toml")
LONG: Final = 2400
"""For faults that appear only if a process was stopped while it held a lock."""

FLOW_MESSAGES: Final = 50
FAIR_MESSAGES: Final = 160


RECORD: Final = "  redis.call('ZADD', in_flight, unpack(scores))\n  redis.call('HSET', leases, unpack(fields))\n"
RECORD_BY_CLIENT: Final = """        rows = list(zip(fields, fields, fields, strict=True))
        for id_, count, _ in rows:
            self._scripts.command("ZADD", self._records.keys.in_flight, expires, id_)
            self._scripts.command("HSET", self._records.keys.leases, id_, b"%d %s" % (count, token))
"""

ADMISSION: Final = "tests/celery/admission/test_admission.py"
LIVENESS: Final = "tests/property/test_flow_liveness.py"
FAULTS: Final = "tests/celery/admission/test_admission_faults.py"
DECLARED: Final = "tests/celery/admission/test_declared.py"
WORKERS: Final = "tests/celery/admission/test_workers.py"

FLOW_MUTANTS: Final = [
    Mutant(
        "count no places",
        (lua("includes/flow_limits", "    used[place] = used[place] + 1\n", ""),),
        f"{ADMISSION} -k no_more_messages_are_taken",
    ),
    Mutant(
        "count no places of keys",
        (lua("includes/flow_limits", "for each = 0, key == '' and 0 or 1 do", "for each = 0, 0 do"),),
        f"{ADMISSION} -k keys_count_apart",
    ),
    Mutant(
        "count the places of the task only",
        (lua("includes/flow_take", "      use(of, of_queue)\n", ""),),
        f"{ADMISSION} -k limits_of_task_and_queue",
    ),
    Mutant(
        "free two places at once",
        (lua("includes/flow_free", "- places[names[i]]", "- 2 * places[names[i]]"),),
        f"{ADMISSION} -k no_more_messages_are_taken",
    ),
    Mutant(
        "free a place and remember it",
        (lua("includes/flow_free", "  redis.call('HDEL', held, unpack(freed))\n", ""),),
        f"{ADMISSION} -k no_more_messages_are_taken",
    ),
    Mutant(
        "free a place, but leave those that wait for it",
        (lua("includes/flow_free", "  offer(names)\n", ""),),
        f"{ADMISSION} -k no_more_messages_are_taken",
    ),
    Mutant(
        "return a message and keep its place",
        (lua("admission/restore", "free({tag})\n", ""),),
        f"{ADMISSION} -k closed_connection",
    ),
    Mutant(
        "return a message behind the others",
        (lua("admission/restore", "push(message, not last)", "push(message, false)"),),
        f"{ADMISSION} -k closed_connection",
    ),
    Mutant(
        "settle and keep the place",
        (lua("admission/settle", "free(tags)\n", ""),),
        f"{ADMISSION} -k stock_worker",
    ),
    Mutant(
        "keep the places of what a stock worker returned",
        (Edit("celery/leases/qos.py", "self._records.free(orphans)", "pass"),),
        f"{ADMISSION} -k stock_worker",
    ),
    Mutant(
        "the last of a key comes first",
        (lua("includes/flow_push", "or redis.call('LPUSH', list, element)", "or redis.call('RPUSH', list, element)"),),
        f"{ADMISSION} -k keys_count_apart",
    ),
    Mutant(
        "take from a paused queue",
        (lua("admission/take", "limit > 0 and not paused and", "limit > 0 and"),),
        f"{ADMISSION} -k paused_queue",
    ),
    Mutant(
        "take a paused task",
        (lua("includes/flow_limits", "'HEXISTS', flags, flow) == 1", "'HEXISTS', flags, flow) == 2"),),
        f"{ADMISSION} -k paused_task",
    ),
    Mutant(
        "ignore the rate",
        (lua("includes/flow_limits", "if not gap then return true end", "if true then return true end"),),
        f"{ADMISSION} -k starts_are_spread",
    ),
    Mutant(
        "one rate for all keys",
        (
            lua(
                "includes/flow_limits",
                "local rule, place, each = rules[flow], place_of(flow, key), key == '' and 0 or 1",
                "local rule, place, each = rules[flow], flow, key == '' and 0 or 1",
            ),
        ),
        f"{ADMISSION} -k own_rate",
    ),
    Mutant(
        "a key comes again before the others",
        (lua("includes/flow_take", "at + 1 / math.max(0.001, weight)", "at"),),
        f"{ADMISSION} -k keys_take_turns",
    ),
    Mutant(
        "a key that returns passes the others",
        (lua("includes/flow_ready", "first + 1)", "first - 1)"),),
        f"{ADMISSION} -k comes_back",
    ),
    Mutant(
        "ignore the weights",
        (lua("includes/flow_take", "math.max(0.001, weight)", "1"),),
        f"{ADMISSION} -k weights",
    ),
    Mutant(
        "tell nobody of a message",
        (lua("admission/send", "if changed[queue] then signal(queue) end\n", ""),),
        f"{ADMISSION} -k woken_by_a_message",
    ),
    Mutant(
        "take more than a worker can start",
        (Edit("celery/admission/admission.py", "room=window - held", "room=1000"),),
        f"{ADMISSION} -k no_more_than_it_can_start",
    ),
    Mutant(
        "run a delayed task without a place",
        (Edit("celery/fetch/channel.py", "                if header is None:\n", "                if True:\n"),),
        f"{ADMISSION} -k delayed_task",
    ),
    Mutant(
        "leave a place to those that cannot use it",
        (lua("admission/take", "offer_again(offered)\n", ""),),
        f"{LIVENESS} -k many_cannot_use",
    ),
    Mutant(
        "offer a place that nobody has used to no others",
        (lua("includes/flow_offer", "if redis.call('EXISTS', blocked) == 1 then", "if false then"),),
        f"{LIVENESS} -k many_cannot_use",
    ),
    Mutant(
        "rest while a free place is wanted",
        (lua("admission/take", "if wakes == 0 and redis.call('EXISTS', offers) == 1 then wakes = 1 end\n", ""),),
        f"{LIVENESS} -k many_cannot_use",
    ),
    Mutant(
        "take a message before the types of keys are known",
        (
            lua(
                "admission/take",
                "-- check backlog, oldest, rates, running, owners, owner_ends, replaced, owned\n",
                "",
            ),
        ),
        f"{FAULTS} -k other_types_lose",
    ),
    Mutant(
        "believe each weight",
        (
            lua(
                "includes/flow_take",
                "return type(found) == 'string' and tonumber(found) or 1",
                "return tonumber(found)",
            ),
        ),
        f"{FAULTS} -k of_other_programs",
    ),
    Mutant(
        "send a message of a flow that is not declared",
        (Edit("celery/admission/sender.py", "if answer == NOT_DECLARED:", "if False:"),),
        f"{DECLARED} -k brings_their_weights",
    ),
    Mutant(
        "change a flow that was not declared and forget its limits",
        (lua("admission/configure", "if declared_now == '' and before ~= ''", "if false and before ~= ''"),),
        f"{DECLARED} -k app_without_them",
    ),
    Mutant(
        "send a message again as a new one",
        (
            Edit(
                "celery/publish/capture.py",
                "with_retries(self._stored.flow_sender.prepare(sent_as, queue, header), sending)",
                "with_retries(lambda: self._stored.flow_sender.send(sent_as, queue, header), sending)",
            ),
        ),
        f"{DECLARED} -k replies_are_lost",
    ),
    Mutant(
        "hand on what waits behind a task",
        (
            Edit(
                "celery/fetch/channel.py",
                "return bool(self._received) and not self._waits(self._received[0])",
                "return bool(self._received)",
            ),
        ),
        f"{WORKERS} -k behind_a_long_task",
    ),
    Mutant(
        "forget the event loop after a lost connection",
        (Edit("celery/leases/step.py", "if self._fetching and consumer.hub is not None:", "if False:"),),
        f"{WORKERS} -k goes_on_after_a_lost_connection",
    ),
    Mutant(
        "count the processes of a pool that scales",
        (Edit("celery/admission/admission.py", 'getattr(autoscaler, "max_concurrency", 0)', "0"),),
        f"{WORKERS} -k that_scales_grows",
    ),
    Mutant(
        "accept what kombu accepts by default",
        (Edit("celery/store_consumer/consumer.py", "if consumer.task_consumer is not None:", "if False:"),),
        "tests/celery/admission/test_elsewhere.py -k any_serializer",
    ),
    Mutant(
        "return a message of a flow that another sweep has returned",
        (lua("admission/restore", "~= record then return 0 end", "== '' then return 0 end"),),
        f"{ADMISSION} -k two_sweeps",
    ),
    Mutant(
        "let a key have two places",
        (lua("includes/flow_limits", "not most or used[place] < most", "not most or used[place] <= most"),),
        messages=FLOW_MESSAGES,
        scenario="flow",
    ),
    Mutant(
        "a tenant that had its turn stays the first",
        (lua("includes/flow_take", "at + 1 / math.max(0.001, weight)", "at"),),
        messages=FAIR_MESSAGES,
        scenario="flow fair",
    ),
]

MUTANTS: Final = [
    Mutant(
        "take, then record (M1)",
        (
            lua("queue/get", RECORD, ""),
            Edit("queue/claims.py", "        rows = zip(fields, fields, fields, strict=True)\n", RECORD_BY_CLIENT),
        ),
    ),
    Mutant(
        "ack without its token (M2)",
        (lua("includes/fence", "string.sub(current[i], -#token) == token", "true"),),
    ),
    Mutant(
        "take what is due and record nothing (M3)",
        (lua("delay/claim", "redis.call('ZADD', in_flight, unpack(scores))", ""),),
    ),
    Mutant("put back and keep in flight (M4)", (lua("records/put_back", "  redis.call('ZREM', in_flight, id)\n", ""),)),
    Mutant(
        "remove before the destination took it (M5)",
        (
            lua(
                "delay/move_due",
                "    if element then pushed,",
                "    redis.call('ZREM', waiting, id)\n    redis.call('HDEL', records, id)\n    if element then pushed,",
            ),
        ),
        "tests/delay/test_delay_queue.py -k another_type",
    ),
    Mutant(
        "a token that comes again (M6)",
        (lua("queue/get", "redis.call('HINCRBY', meta, 'claims', 1), nonce", "1, 'attempt'"),),
        "tests/queue/test_queue.py tests/property/test_queue_machine.py",
    ),
    Mutant(
        "a hash of the body as id (M7)",
        (
            Edit(
                "queue/queue.py",
                "id_ = new_ids(1)[0] if dedupe_key is None",
                'id_ = __import__("hashlib").md5(repr(body).encode()).hexdigest() if dedupe_key is None',
            ),
        ),
        "tests/queue/test_queue.py tests/property/test_queue_machine.py",
    ),
    Mutant(
        "reschedule what is not there (M8)",
        (
            lua("delay/reschedule", "if not redis.call('ZSCORE', waiting, id) then return remember(0) end\n", ""),
            lua("delay/reschedule", "redis.call('ZADD', waiting, 'XX', ", "redis.call('ZADD', waiting, "),
        ),
        "tests/delay/test_delay_queue.py",
    ),
    Mutant(
        "the client's clock (M9)",
        (
            Edit(
                "store/scripts.py",
                "    return 0\n\n\ndef now_ms",
                "    return round(time.time() * 1000)\n\n\ndef now_ms",
            ),
        ),
        "tests/queue/test_queue.py tests/delay/test_delay_queue.py -k that_of_the_server",
    ),
    Mutant(
        "finish before the broker confirms (M10)",
        (
            Edit(
                "celery/dispatch/delivery.py",
                "{entry.id: entry for entry in entries}\n",
                "{entry.id: entry for entry in entries}\n        self._queue.ack_many(entries)\n",
            ),
        ),
        "tests/celery/dispatch/test_outages.py",
    ),
    Mutant(
        "repeat a call as if it were new (M11)",
        (lua("queue/put", "if last == sequence then", "if last == '' then"),),
        "tests/store/test_faults.py -k LostReply",
    ),
    Mutant(
        "publish what need not arrive (M12)",
        (Edit("celery/brokers/amqp.py", "routing_key, True, False", "routing_key, False, False"),),
        "tests/celery/brokers tests/celery/dispatch/test_dispatcher.py",
    ),
    Mutant(
        "put back without a limit (M13)",
        (lua("records/put_back", ", 'LIMIT', 0, limit)", ")"),),
        "tests/store/test_base_queue.py -k put_back_returns_at_most_its_limit",
    ),
    Mutant(
        "a sweep that stops at what it cannot read (M14)",
        (lua("records/put_back", "    redis.call('HDEL', leases, id)\n  else", "    break\n  else"),),
        "tests/store/test_records.py -k put_back",
    ),
    Mutant(
        "a sweep that begins at 0 (M15)",
        (lua("records/put_back", "in_flight, '-inf', at", "in_flight, '0', at"),),
        "tests/store/test_records.py -k negative_end",
    ),
    Mutant("take what is not due", (lua("delay/claim", "string.format('%.0f', now - older_than)", "'+inf'"),)),
    Mutant(
        "tell that anything was cancelled",
        (lua("includes/remove_entry", "if not place then return 0, 0 end", "if not place then return 1, 0 end"),),
    ),
    Mutant(
        "put back to nowhere",
        (lua("records/put_back", "redis.call('ZADD', waiting, at, id)", "redis.call('ZCARD', dead)"),),
    ),
    Mutant("settle and keep in flight", (lua("includes/finish", "redis.call('ZREM', in_flight, unpack(done))", ""),)),
    Mutant("store without a place", (lua("queue/put", "redis.pcall('LPUSH', ready, unpack(pushed))", "#pushed"),)),
    Mutant("the last comes first", (lua("queue/put", "'LPUSH', ready, unpack", "'RPUSH', ready, unpack"),)),
    Mutant(
        "dead too soon", (lua("records/release", "deliveries >= max_deliveries", "deliveries > max_deliveries - 2"),)
    ),
    Mutant("take a lock that another one holds", (lua("lock/acquire", "and ends > now then", "and ends < 0 then"),)),
    Mutant(
        "give back a lock that another one holds",
        (lua("lock/release", "found[1] == token", "found[1]"),),
        messages=LONG,
    ),
    Mutant(
        "a fence that comes again",
        (lua("lock/acquire", "fence = math.max(fence + 1, now * 1000)", "fence = now - now % 1000"),),
    ),
    Mutant(
        "extend a lock that another one holds",
        (lua("lock/extend", "if found[1] ~= token then return 0 end", "if not found[1] then return 0 end"),),
        "tests/lock/test_lock.py",
    ),
    Mutant(
        "run without the lock",
        (Edit("lock/serialized.py", "            if held_here(lock):\n", "            if True:\n"),),
        "tests/lock/test_serialized_handlers.py",
    ),
    Mutant(
        "return what another sweep has returned",
        (Edit("lua/broker/restore.lua", "~= record then return 0 end", "== '' then return 0 end"),),
        "tests/celery/leases/test_sweep.py -k two_sweeps",
    ),
    Mutant(
        "forget what a lost connection did not settle",
        (Edit("celery/fetch/settlement.py", "            self._waiting[:0] = batch\n", ""),),
        "tests/celery/fetch/test_settlement.py -k unsettled",
    ),
    Mutant(
        "return what is to be settled",
        (Edit("celery/leases/qos.py", "tag in running or tag in self.leases.settlement:", "tag in running:"),),
        "tests/celery/fetch/test_settlement.py -k recovering",
    ),
    Mutant(
        "listen for ever",
        (Edit("lua/broker/fetch.lua", "  redis.call('DEL', listener)\n  wakes = 1\n", ""),),
        "tests/celery/fetch/test_idle_line.py -k wakes_the_listener",
    ),
    Mutant(
        "trust a listener that is gone",
        (Edit("lua/broker/fetch.lua", " or redis.call('PUBSUB', 'NUMSUB', listening)[2] == 0", ""),),
        "tests/celery/fetch/test_idle_line.py -k is_gone",
    ),
    Mutant(
        "start what another worker has",
        (Edit("celery/intake.py", "if not self._may_start(request):", "if False:"),),
        "tests/celery/leases/test_task_leases.py -k does_not_start_lost",
    ),
    Mutant(
        "start a message that this worker runs",
        (Edit("celery/intake.py", "elif run is not request and run in", "elif False and run in"),),
        "tests/celery/leases/test_task_leases.py -k comes_again",
    ),
    Mutant(
        "forget the revoked ids of the store",
        (
            Edit(
                "celery/control/revokes.py",
                "super().__contains__(key) or key in self._stored",
                "super().__contains__(key)",
            ),
        ),
        "tests/celery/control/test_revokes.py -k WaitingCall",
    ),
    Mutant(
        "delete a message of a flow and count it as waiting",
        (lua("admission/delete", "shrunk(group, removed)\n", ""),),
        "tests/celery/admission/test_purge.py -k found_and_deleted",
    ),
    Mutant(
        "return a message in flight that was settled meanwhile",
        (lua("broker/mend", "if redis.call('HEXISTS', unacked, tag) == 0 then", "if false then"),),
        "tests/doctor/test_in_flight.py",
    ),
    *FLOW_MUTANTS,
    *UNIQUE_MUTANTS,
]


def caught(mutant: Mutant, *, seeds: tuple[int, ...] = SEEDS) -> list[str]:
    """Return the evidence against *mutant*: broken promises of a run for each seed, or failures of its tests."""
    with patched(mutant) as folder:
        if mutant.tests:
            return ["its tests fail"] if _fails(folder, mutant.tests) else []
        found = [run(mutant.scenario, messages=mutant.messages, seed=seed, root=folder) for seed in seeds]
    return [", ".join(one["broken"]) for one in found if one["broken"]]


@contextlib.contextmanager
def patched(mutant: Mutant) -> Iterator[Path]:
    """Yield a folder with a copy of the code and the fault; raises ValueError if an edit does not apply."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(name)
        for what in COPIED:
            source = ROOT / what
            if source.is_dir():
                shutil.copytree(source, folder / what, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, folder / what)
        for file, text in mutated(mutant).items():
            (folder / PACKAGE / file).write_text(text)
        yield folder


def mutated(mutant: Mutant) -> dict[str, str]:
    """Return the new text of each file that *mutant* changes; raises ValueError if an edit does not apply."""
    texts: dict[str, str] = {}
    for file, old, new in mutant.edits:
        text = texts.get(file) or (ROOT / PACKAGE / file).read_text()
        if text.count(old) != 1:
            raise ValueError(f"{old!r} occurs {text.count(old)} times, expected once, in {file}")
        texts[file] = text.replace(old, new)
    return texts


def _fails(folder: Path, tests: str) -> bool:
    options = ["-x", "-q", "-p", "no:cacheprovider", "-W", "default"]
    command = [sys.executable, "-m", "pytest", *options, *tests.split()]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-1000:]
    return done.returncode == 1
