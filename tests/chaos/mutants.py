"""The mutants: the tests or the runs that find each, its name, and the fault."""

from __future__ import annotations

from typing import Final

from tests.chaos.edits import found_by_runs, found_by_tests, lua, py
from tests.chaos.schedule_mutants import FOUND_BY_SCHEDULE_TESTS
from tests.chaos.unique_mutants import FOUND_BY_UNIQUE_TESTS

LONG: Final = 2400
"""For faults that appear only if a process was stopped while it held a lock."""

RECORD: Final = "  redis.call('ZADD', in_flight, unpack(scores))\n  redis.call('HSET', leases, unpack(fields))\n"
READ: Final = "        read = [read_message(self._records, row, lease) for row in rows_of(found, 3)]\n"
RECORD_BY_CLIENT: Final = f"""        for id_, count, _ in rows_of(found, 3):
            self._scripts.command("ZADD", self._records.keys.in_flight, expires, id_)
            self._scripts.command("HSET", self._records.keys.leases, id_, b"%d %s" % (count, token))
{READ}"""

FOUND_BY_TESTS: Final = {
    "tests/delay/test_delay_queue.py": {
        "remove before the destination took it (M5)": lua(
            "delay/move_due",
            "    if element then pushed,",
            "    redis.call('ZREM', waiting, id)\n    redis.call('HDEL', records, id)\n    if element then pushed,",
            "another_type",
        ),
        "reschedule what is not there (M8)": lua(
            "delay/reschedule",
            "if not redis.call('ZSCORE', waiting, id) then return remember(0) end\n",
            "",
            also=lua("delay/reschedule", "redis.call('ZADD', waiting, 'XX', ", "redis.call('ZADD', waiting, "),
        ),
    },
    "tests/queue/test_queue.py tests/property/test_queue_machine.py": {
        "a token that comes again (M6)": lua(
            "queue/get", "redis.call('HINCRBY', meta, 'claims', 1), nonce", "1, 'attempt'"
        ),
        "a hash of the body as id (M7)": py(
            "queue/queue.py",
            "id_ = new_ids(1)[0] if dedupe_key is None",
            'id_ = __import__("hashlib").md5(repr(body).encode()).hexdigest() if dedupe_key is None',
        ),
    },
    "tests/queue/test_queue.py tests/delay/test_delay_queue.py": {
        "the client's clock (M9)": py(
            "store/scripts.py",
            "    return 0\n\n\ndef now_ms",
            "    return round(time.time() * 1000)\n\n\ndef now_ms",
            "that_of_the_server",
        ),
    },
    "tests/celery/dispatch/test_outages.py": {
        "finish before the broker confirms (M10)": py(
            "celery/dispatch/delivery.py",
            "{entry.id: entry for entry in entries}\n",
            "{entry.id: entry for entry in entries}\n        self._queue.ack_many(entries)\n",
        ),
    },
    "tests/store/test_faults.py": {
        "repeat a call as if it were new (M11)": lua(
            "queue/put", "if last == sequence then", "if last == '' then", "LostReply"
        ),
    },
    "tests/celery/brokers tests/celery/dispatch/test_dispatcher.py": {
        "publish what need not arrive (M12)": py(
            "celery/brokers/amqp.py", "routing_key, True, False", "routing_key, False, False"
        ),
    },
    "tests/store/test_base_queue.py": {
        "put back without a limit (M13)": lua(
            "records/put_back", ", 'LIMIT', 0, limit)", ")", "put_back_returns_at_most_its_limit"
        ),
    },
    "tests/store/test_records.py": {
        "a sweep that stops at what it cannot read (M14)": lua(
            "records/put_back", "    redis.call('HDEL', leases, id)\n  else", "    break\n  else", "put_back"
        ),
        "a sweep that begins at 0 (M15)": lua(
            "records/put_back", "in_flight, '-inf', at", "in_flight, '0', at", "negative_end"
        ),
    },
    "tests/lock/test_lock.py": {
        "extend a lock that another one holds": lua(
            "lock/extend", "if found[1] ~= token then return 0 end", "if not found[1] then return 0 end"
        ),
    },
    "tests/lock/test_serialized_handlers.py": {
        "run without the lock": py("lock/serialized.py", "            if held_here(lock):\n", "            if True:\n"),
    },
    "tests/celery/leases/test_sweep.py": {
        "return what another sweep has returned": lua(
            "broker/restore", "~= record then return 0 end", "== '' then return 0 end", "two_sweeps"
        ),
    },
    "tests/celery/fetch/test_settlement.py": {
        "forget what a lost connection did not settle": py(
            "celery/fetch/settlement.py", "            self._waiting[:0] = batch\n", "", "unsettled"
        ),
        "return what is to be settled": py(
            "celery/leases/qos.py", "tag in running or tag in self.leases.settlement:", "tag in running:", "recovering"
        ),
    },
    "tests/celery/fetch/test_idle_line.py": {
        "listen for ever": lua(
            "broker/fetch", "  redis.call('DEL', listener)\n  wakes = 1\n", "", "wakes_the_listener"
        ),
        "trust a listener that is gone": lua(
            "broker/fetch", " or redis.call('PUBSUB', 'NUMSUB', listening)[2] == 0", "", "is_gone"
        ),
    },
    "tests/celery/leases/test_task_leases.py": {
        "start what another worker has": py(
            "celery/intake.py", "if not leases.may_be_ours(request", "if False and (request", "does_not_start_lost"
        ),
        "start a message that this worker runs": py(
            "celery/intake.py", "if run is not request and run in", "if False and run in", "comes_again"
        ),
    },
    "tests/celery/control/test_revokes.py": {
        "forget the revoked ids of the store": py(
            "celery/control/revokes.py",
            "super().__contains__(key) or key in self._stored",
            "super().__contains__(key)",
            "WaitingCall",
        ),
    },
    "tests/celery/admission/test_purge.py": {
        "delete a message of a flow and count it as waiting": lua(
            "admission/remove", "shrunk(source, removed)\n", "", "found_and_deleted"
        ),
    },
    "tests/doctor/test_in_flight.py": {
        "return a message in flight that was settled meanwhile": lua(
            "broker/repair", "if redis.call('HEXISTS', unacked, tag) == 0 then", "if false then"
        ),
    },
    "tests/celery/admission/test_admission.py": {
        "count no places": lua(
            "includes/flow_limits", "    used[place] = used[place] + 1\n", "", "no_more_messages_are_taken"
        ),
        "count no places of keys": lua(
            "includes/flow_limits", "for each = 0, key == '' and 0 or 1 do", "for each = 0, 0 do", "keys_count_apart"
        ),
        "count the places of the task only": lua(
            "includes/flow_take", "      use(of, of_queue)\n", "", "limits_of_task_and_queue"
        ),
        "free two places at once": lua(
            "includes/flow_free", "- places[names[i]]", "- 2 * places[names[i]]", "no_more_messages_are_taken"
        ),
        "free a place and remember it": lua(
            "includes/flow_free", "  redis.call('HDEL', held, unpack(freed))\n", "", "no_more_messages_are_taken"
        ),
        "free a place, but leave those that wait for it": lua(
            "includes/flow_free", "  offer(names)\n", "", "no_more_messages_are_taken"
        ),
        "return a message and keep its place": lua("admission/restore", "free({tag})\n", "", "closed_connection"),
        "return a message behind the others": lua(
            "admission/restore", "push(message, not last)", "push(message, false)", "closed_connection"
        ),
        "settle and keep the place": lua("admission/settle", "free(tags)\n", "", "stock_worker"),
        "keep the places of what a stock worker returned": py(
            "celery/leases/qos.py", "self._records.free(tags)", "pass", "stock_worker"
        ),
        "the last of a key comes first": lua(
            "includes/flow_push",
            "or redis.call('LPUSH', list, element)",
            "or redis.call('RPUSH', list, element)",
            "keys_count_apart",
        ),
        "take from a paused queue": lua(
            "admission/take", "limit > 0 and not paused and", "limit > 0 and", "paused_queue"
        ),
        "take a paused task": lua(
            "includes/flow_limits", "'HEXISTS', flags, flow) == 1", "'HEXISTS', flags, flow) == 2", "paused_task"
        ),
        "ignore the rate": lua(
            "includes/flow_limits",
            "if not gap then return true end",
            "if true then return true end",
            "starts_are_spread",
        ),
        "one rate for all keys": lua(
            "includes/flow_limits",
            "local at = used_until[place] - (burst - 1) * gap",
            "local at = used_until[flow] - (burst - 1) * gap",
            "own_rate",
        ),
        "a key comes again before the others": lua(
            "includes/flow_take", "at + 1 / math.max(0.001, weight)", "at", "keys_take_turns"
        ),
        "a key that returns passes the others": lua("includes/flow_ready", "first + 1)", "first - 1)", "comes_back"),
        "ignore the weights": lua("includes/flow_take", "math.max(0.001, weight)", "1", "weights"),
        "tell nobody of a message": lua(
            "admission/send", "if changed[queue] then signal(queue) end\n", "", "woken_by_a_message"
        ),
        "take more than a worker can start": py(
            "celery/admission/admission.py", "room=window - held", "room=1000", "no_more_than_it_can_start"
        ),
        "run a delayed task without a place": py(
            "celery/fetch/channel.py",
            "                if header is None:\n",
            "                if True:\n",
            "delayed_task",
        ),
        "return a message of a flow that another sweep has returned": lua(
            "admission/restore", "~= record then return 0 end", "== '' then return 0 end", "two_sweeps"
        ),
    },
    "tests/property/test_flow_liveness.py": {
        "leave a place to those that cannot use it": lua(
            "admission/take", "offer_again(offered)\n", "", "many_cannot_use"
        ),
        "offer a place that nobody has used to no others": lua(
            "includes/flow_offer", "if redis.call('EXISTS', blocked) == 1 then", "if false then", "many_cannot_use"
        ),
        "rest while a free place is wanted": lua(
            "admission/take",
            "if wakes == 0 and redis.call('EXISTS', offers) == 1 then wakes = 1 end\n",
            "",
            "many_cannot_use",
        ),
    },
    "tests/celery/admission/test_admission_faults.py": {
        "take a message before the types of keys are known": lua(
            "admission/take",
            "-- check backlog, oldest, rates, running, owners, owner_ends, replaced, owned\n",
            "",
            "other_types_lose",
        ),
        "believe each weight": lua(
            "includes/flow_take",
            "return type(found) == 'string' and tonumber(found) or 1",
            "return tonumber(found)",
            "of_other_programs",
        ),
    },
    "tests/celery/admission/test_declared.py": {
        "send a message of a flow that is not declared": py(
            "celery/admission/sender.py", "if answer == NOT_DECLARED:", "if False:", "brings_their_weights"
        ),
        "change a flow that was not declared and forget its limits": lua(
            "admission/configure",
            "if declared_now == '' and before ~= ''",
            "if false and before ~= ''",
            "app_without_them",
        ),
        "send a message again as a new one": py(
            "celery/publish/capture.py",
            "with_retries(self._stored.flow_sender.prepare(sent_as, queue, header), sending)",
            "with_retries(lambda: self._stored.flow_sender.send(sent_as, queue, header), sending)",
            "replies_are_lost",
        ),
    },
    "tests/celery/admission/test_workers.py": {
        "hand on what waits behind a task": py(
            "celery/fetch/channel.py",
            "return bool(self._received) and not self._flow_turns.waits(self._received[0])",
            "return bool(self._received)",
            "behind_a_long_task",
        ),
        "forget the event loop after a lost connection": py(
            "celery/leases/step.py",
            "if self._fetching and consumer.hub is not None:",
            "if False:",
            "goes_on_after_a_lost_connection",
        ),
        "count the processes of a pool that scales": py(
            "celery/admission/admission.py", 'getattr(autoscaler, "max_concurrency", 0)', "0", "that_scales_grows"
        ),
    },
    "tests/celery/admission/test_elsewhere.py": {
        "accept what kombu accepts by default": py(
            "celery/store_consumer/consumer.py", "if consumer.task_consumer is not None:", "if False:", "any_serializer"
        ),
    },
}
FOUND_BY_RUNS: Final = {
    ("kill", 600): {
        "take, then record (M1)": lua(
            "queue/get",
            RECORD,
            "",
            also=py("queue/claims.py", READ, RECORD_BY_CLIENT),
        ),
        "ack without its token (M2)": lua("includes/fence", "string.sub(current[i], -#token) == token", "true"),
        "take what is due and record nothing (M3)": lua(
            "delay/claim", "redis.call('ZADD', in_flight, unpack(scores))", ""
        ),
        "put back and keep in flight (M4)": lua("records/put_back", "  redis.call('ZREM', in_flight, id)\n", ""),
        "take what is not due": lua("delay/claim", "string.format('%.0f', now - older_than)", "'+inf'"),
        "tell that anything was cancelled": lua("delay/cancel", "ids[i + 1], 0, ''", "ids[i + 1], 1, ''"),
        "put back to nowhere": lua(
            "records/put_back", "redis.call('ZADD', waiting, at, id)", "redis.call('ZCARD', dead)"
        ),
        "settle and keep in flight": lua("includes/finish", "redis.call('ZREM', in_flight, unpack(done))", ""),
        "store without a place": lua("queue/put", "redis.pcall('LPUSH', ready, unpack(pushed))", "#pushed"),
        "the last comes first": lua("queue/put", "'LPUSH', ready, unpack", "'RPUSH', ready, unpack"),
        "dead too soon": lua("records/nack", "deliveries >= max_deliveries", "deliveries > max_deliveries - 2"),
        "take a lock that another one holds": lua("lock/acquire", "and ends > now then", "and ends < 0 then"),
        "a fence that comes again": lua(
            "lock/acquire", "fence = math.max(fence + 1, now * 1000)", "fence = now - now % 1000"
        ),
    },
    ("kill", LONG): {
        "give back a lock that another one holds": lua("lock/release", "found[1] == token", "found[1]"),
    },
    ("flow", 50): {
        "let a key have two places": lua(
            "includes/flow_limits", "not most or used[place] < most", "not most or used[place] <= most"
        ),
    },
    ("flow fair", 160): {
        "a tenant that had its turn stays the first": lua(
            "includes/flow_take", "at + 1 / math.max(0.001, weight)", "at"
        ),
    },
    ("schedules", 500): {
        "send a run of a schedule that has moved on": lua(
            "schedules/change", "local flag = found == before and 1 or 0", "local flag = 1"
        ),
    },
    ("schedules", 100): {
        "count an interval from now": py(
            "schedules/state.py",
            "after = following(definition, state.since, dues[-1], times)",
            "after = following(definition, now, now, times)",
        ),
        "skip a run and do not count it": py(
            "schedules/state.py", "self.state = self.state.skip(reason, len(dues))", "pass"
        ),
    },
    ("unique", 150): {
        "run what was replaced": lua(
            "includes/unique_take", "if is_dropped(token, letter) then", "if is_dropped(token, letter) and false then"
        ),
        "let two tasks of a key run": lua(
            "includes/unique_take", "    own(field, token, '-', 'r', ttl, id, ends)", "    disown(field, id)"
        ),
    },
}
MUTANTS: Final = [
    *found_by_tests(FOUND_BY_TESTS),
    *found_by_tests(FOUND_BY_UNIQUE_TESTS),
    *found_by_tests(FOUND_BY_SCHEDULE_TESTS),
    *found_by_runs(FOUND_BY_RUNS),
]
