"""Connections that break anywhere during a call: one effect, and the true answer or an error that it is unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import redis

from redis_queue import Consumer, DelayQueue, EntryExistsError, RedisQueue, StoreUnavailableError
from redis_queue.delay.model import Push
from redis_queue.model import Lease, Message
from redis_queue.store.script_files import load
from tests.support.clock import when
from tests.support.proxy import FaultProxy
from tests.support.servers import client_options
from tests.support.store.stage import COUNTS, VERBS, load_scripts, lost, raised, rehearse, snapshot, state, verbs
from tests.support.wait import must, wait_until

pytestmark = pytest.mark.usefixtures("without_pauses")

TIMEOUT = 0.5
"""Seconds: enough for a connection and an answer on a busy machine, since the second attempt is the last."""


@pytest.fixture
def hasty(proxy: FaultProxy) -> Iterator[redis.Redis]:
    """A client that connects through the proxy, with a short timeout until the fault has happened."""

    class Hasty(redis.Connection):
        def __init__(self, **options: Any) -> None:
            super().__init__(**{**options, "socket_timeout": TIMEOUT if proxy.pending_drops else 30})

    pool = redis.ConnectionPool.from_url(proxy.url, connection_class=Hasty, **client_options())
    with redis.Redis(connection_pool=pool) as hasty:
        yield hasty
    pool.disconnect()


def outcome(verb: str) -> str:
    """Return what the error says about the outcome of *verb*: only that of a write is unknown."""
    return "whether" if load(VERBS[verb].script).writes else r"in time \("


def settle(proxy: FaultProxy, left: int) -> None:
    """Wait until the server has closed the abandoned connections."""
    wait_until(lambda: proxy.open_connections <= left, description="the late requests to end")


CUTS: dict[str, Callable[[FaultProxy, bytes], None]] = {
    "reset before it arrives": lambda proxy, sha: proxy.cut_next_request(matching=sha),
    "reset in the middle of the request": lambda proxy, sha: proxy.cut_next_request(2, matching=sha, before=sha),
    "reset in the middle of the reply": lambda proxy, sha: proxy.cut_next_reply(matching=sha),
}


class TestEveryVerb:
    @verbs
    @pytest.mark.parametrize("cut", CUTS)
    def test_has_one_effect_and_the_true_answer(
        self, client: redis.Redis, proxy: FaultProxy, through: redis.Redis, verb: str, cut: str
    ) -> None:
        known = rehearse(client, verb)
        CUTS[cut](proxy, known.sha)
        found = VERBS[verb].call(known.stage.on(through))
        assert proxy.pending_drops == 0
        assert state(client) == known.after
        if "reply" not in cut or verb not in COUNTS:
            assert found == known.answer

    @verbs
    def test_without_arriving_changes_nothing_and_raises(
        self, client: redis.Redis, proxy: FaultProxy, through: redis.Redis, verb: str
    ) -> None:
        known = rehearse(client, verb)
        proxy.cut_next_request(10, matching=known.sha)
        with pytest.raises(StoreUnavailableError, match=outcome(verb)):
            VERBS[verb].call(known.stage.on(through))
        assert proxy.pending_drops == 7
        assert state(client) == known.before
        proxy.cut_next_request(0)
        assert VERBS[verb].call(known.stage.on(through)) == known.answer

    @verbs
    def test_without_a_reply_has_at_most_one_effect(
        self, client: redis.Redis, proxy: FaultProxy, through: redis.Redis, verb: str
    ) -> None:
        known = rehearse(client, verb)
        proxy.cut_next_reply(10, matching=known.sha)
        with pytest.raises(StoreUnavailableError, match=outcome(verb)):
            VERBS[verb].call(known.stage.on(through))
        assert lost(client, VERBS[verb]) == []
        # A pop without an answer acks nothing: its claims are put back.
        if verb != "pop":
            assert state(client) == known.after

    @verbs
    def test_may_arrive_again_after_its_answer(
        self, client: redis.Redis, proxy: FaultProxy, hasty: redis.Redis, verb: str
    ) -> None:
        known = rehearse(client, verb)
        proxy.hold_next_request(matching=known.sha)
        assert VERBS[verb].call(known.stage.on(hasty)) == known.answer
        assert proxy.pending_drops == 0
        proxy.release()
        settle(proxy, 1)
        assert state(client) == known.after

    @verbs
    def test_that_arrives_after_the_timeout_has_at_most_one_effect(
        self, client: redis.Redis, proxy: FaultProxy, verb: str
    ) -> None:
        known = rehearse(client, verb)
        proxy.mode = "blackhole"
        with redis.Redis.from_url(proxy.url, **client_options(socket_timeout=0.02)) as hasty:
            with pytest.raises(StoreUnavailableError, match="did not answer in time"):
                VERBS[verb].call(known.stage.on(hasty))
            assert state(client) == known.before
            proxy.mode = "pass"
            settle(proxy, 0)
        assert lost(client, VERBS[verb]) == []
        assert state(client) in (known.before, known.after)


class Both(NamedTuple):
    """Both queues of one client, and the answer of the call."""

    queue: RedisQueue
    timed: DelayQueue
    answer: Any = None


class Late(NamedTuple):
    """A call whose first attempt is delayed, the calls after its answer, and the condition that must hold then."""

    script: str
    call: Callable[[Both], Any]
    then: Callable[[Both], Any]
    check: Callable[[Both], bool]


LATE: dict[str, Late] = {
    "a put, and the message is done": Late(
        "queue/put",
        lambda on: on.queue.put("late", dedupe_key="late"),
        lambda on: on.queue.ack_many(on.queue.get_many(9)),
        lambda on: on.queue.look("late") is None,
    ),
    "a claim of a message, and it is done": Late(
        "queue/get",
        lambda on: on.queue.get_many(1),
        lambda on: on.queue.ack_many(on.answer),
        lambda on: (on.queue.stats().ready, on.queue.stats().in_flight) == (2, 0),
    ),
    "a claim of a message that found none, and one comes": Late(
        "queue/get",
        lambda on: (on.queue.pause(), on.queue.get(block=False)),
        lambda on: on.queue.resume(),
        lambda on: (on.queue.stats().ready, on.queue.stats().in_flight) == (3, 0),
    ),
    "an ack that found nothing, and the message is claimed again": Late(
        "records/ack",
        lambda on: on.queue.ack(GONE),
        lambda on: on.queue.get_many(1),
        lambda on: on.queue.stats().in_flight == 1,
    ),
    "a push, and the entry is cancelled": Late(
        "delay/push",
        lambda on: on.timed.push("late", id="late", delay=60),
        lambda on: on.timed.cancel("late"),
        lambda on: on.timed.look("late") is None,
    ),
    "a push that was refused, and the other one is cancelled": Late(
        "delay/push",
        lambda on: raised(EntryExistsError, lambda: on.timed.push("late", id="a", on_conflict="error")),
        lambda on: on.timed.cancel("a"),
        lambda on: on.timed.look("a") is None,
    ),
    "a cancel, and the entry is stored anew": Late(
        "delay/cancel",
        lambda on: on.timed.cancel("a"),
        lambda on: on.timed.push("anew", id="a"),
        lambda on: on.timed.look("a") is not None,
    ),
    "a claim of an entry, and it is done": Late(
        "delay/claim",
        lambda on: on.timed.claim(),
        lambda on: on.timed.ack_many(on.answer),
        lambda on: (on.timed.stats().waiting, on.timed.stats().in_flight) == (2, 0),
    ),
    "a reschedule, and another one": Late(
        "delay/reschedule",
        lambda on: on.timed.run_now("later"),
        lambda on: on.timed.reschedule("later", delay=3600),
        lambda on: on.timed.stats().due == 2,
    ),
    "a purge, and more is put": Late(
        "records/purge",
        lambda on: on.queue.purge("ready"),
        lambda on: on.queue.put("more"),
        lambda on: len(on.queue) == 1,
    ),
    "a redrive, and it dies again": Late(
        "records/redrive",
        lambda on: on.timed.redrive(["dead"]),
        lambda on: on.timed.nack_many(on.timed.claim(9), dead=True),
        lambda on: on.timed.stats().dead == 3,
    ),
    "a deletion of a dead letter, and another one has its id": Late(
        "records/delete_dead",
        lambda on: on.timed.delete_dead(["dead"]),
        lambda on: on.timed.foreign.bury(Push("late", id="dead"), reason="on purpose", deliveries=1),
        lambda on: on.timed.stats().dead == 1,
    ),
    "a note that an id was revoked, and it is stored anew": Late(
        "delay/cancel",
        lambda on: on.timed.revokes.note_revoked(["late"]),
        lambda on: on.timed.marked.renew_many([Push("late", id="late", mark="mark", delay=60)]),
        lambda on: on.timed.revokes.is_renewed("late", "mark"),
    ),
    "a burial, and the dead letter is redriven and done": Late(
        "records/add_dead",
        lambda on: on.timed.foreign.bury(Push("late", id="late"), reason="on purpose", deliveries=1),
        lambda on: (on.timed.redrive(["late"]), on.timed.cancel("late")),
        lambda on: on.timed.look("late") is None,
    ),
}

GONE = Message("gone", None, {}, when(0), 1, Lease("1-nobody", when(0)))


class TestDelayedFirstAttempt:
    @pytest.mark.parametrize("late", LATE)
    def test_has_no_effect_after_the_next_call(
        self, client: redis.Redis, proxy: FaultProxy, hasty: redis.Redis, late: str
    ) -> None:
        load_scripts(client)
        script, call, then, check = LATE[late]
        queue, timed = RedisQueue("orders", client), DelayQueue("orders", client)
        queue.put_many(["a", "b", "c"])
        timed.push("dead", id="dead")
        timed.nack_many(timed.claim(), dead=True)
        timed.push_many([Push("a", id="a"), Push("b", id="b"), Push("later", id="later", delay=60)])
        if script == "delay/claim":
            timed.purge("dead")
            timed.cancel("later")
            timed.push("c", id="c")
        mine = Both(RedisQueue("orders", hasty), DelayQueue("orders", hasty))
        proxy.hold_next_request(matching=load(script).sha.encode())
        answer = call(mine)
        assert proxy.pending_drops == 0
        then(mine._replace(answer=answer))
        assert check(Both(queue, timed))
        before = snapshot(client)
        proxy.release()
        settle(proxy, 1)
        assert snapshot(client) == before


GET = load("queue/get").sha.encode()

BETWEEN: dict[str, Callable[[FaultProxy], None]] = {
    "nothing arrives": lambda proxy: proxy.cut_next_request(matching=GET),
    "half of the request arrives": lambda proxy: proxy.cut_next_request(matching=GET, before=GET),
    "nothing arrives, until the next attempt of the caller": lambda proxy: proxy.cut_next_request(3, matching=GET),
    "no reply comes": lambda proxy: proxy.drop_next_reply(matching=GET),
    "half of the reply comes": lambda proxy: proxy.cut_next_reply(matching=GET),
    "no reply comes, three times": lambda proxy: proxy.drop_next_reply(3, matching=GET),
    "no reply comes, five times": lambda proxy: proxy.drop_next_reply(5, matching=GET),
}


class TestAckWithNextClaim:
    """An ack and the next claim are one call; the connection may break before, in and after it."""

    @pytest.fixture
    def warm(self, client: redis.Redis) -> RedisQueue:
        """A queue with three messages, on a server that has loaded the scripts."""
        load_scripts(client)
        queue = RedisQueue("orders", client)
        queue.put_many(["first", "second", "third"])
        return queue

    @pytest.fixture(autouse=True)
    def no_false_report(self, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
        """A lost reply is no lost lease."""
        yield
        assert "ack refused" not in caplog.text
        assert "lease was lost" not in caplog.text

    @pytest.mark.parametrize("between", BETWEEN)
    def test_consume_acks_one_message_and_claims_the_next_once(
        self, warm: RedisQueue, proxy: FaultProxy, through: redis.Redis, between: str
    ) -> None:
        found = []
        for message in RedisQueue("orders", through).consume(timeout=0):
            assert message.deliveries == 1
            stats = warm.stats()
            assert (stats.ready, stats.in_flight, stats.acked) == (2 - len(found), 1, len(found))
            if not found:
                BETWEEN[between](proxy)
            found.append(message.body)
        assert proxy.pending_drops == 0
        assert found == ["first", "second", "third"]
        assert warm.stats().acked == 3

    @pytest.mark.parametrize("between", BETWEEN)
    @pytest.mark.parametrize("batch", [1, 2])
    def test_a_consumer_acks_its_batch_and_claims_the_next_once(
        self, warm: RedisQueue, proxy: FaultProxy, through: redis.Redis, between: str, batch: int
    ) -> None:
        def handle(message: Message) -> None:
            stats = warm.stats()
            found.append((message.body, message.deliveries, stats.ready))
            if len(found) == batch:
                BETWEEN[between](proxy)
            if message.body == "third":
                consumer.stop()

        found: list[tuple[str, int, int]] = []
        consumer = Consumer(RedisQueue("orders", through), handle, batch=batch)
        consumer.run()
        assert proxy.pending_drops == 0
        left = [2, 1, 0] if batch == 1 else [1, 1, 0]
        assert found == [("first", 1, left[0]), ("second", 1, left[1]), ("third", 1, left[2])]
        stats = warm.stats()
        assert (stats.ready, stats.in_flight, stats.acked) == (0, 0, 3)

    @pytest.mark.parametrize("between", ["nothing arrives", "no reply comes", "no reply comes, five times"])
    def test_a_lease_lost_before_it_is_reported_once_and_the_claim_succeeds(
        self, warm: RedisQueue, proxy: FaultProxy, through: redis.Redis, between: str
    ) -> None:
        queue = RedisQueue("orders", through)
        first, second = queue.get_many(2)
        assert warm.nack(first, delay=60)
        BETWEEN[between](proxy)
        step = queue.ack_then_get([first, second], 5)
        found = insist(step)
        assert proxy.pending_drops == 0
        assert found == insist(step)
        assert found[0] == [False, True]
        assert [message.body for message in found[1]] == ["third"]
        stats = warm.stats()
        assert (stats.delayed, stats.in_flight, stats.acked) == (1, 1, 1)

    def test_messages_claimed_by_a_repeated_call_keep_their_new_holders(self, warm: RedisQueue) -> None:
        (first,) = warm.get_many(1)
        step = warm.ack_then_get([first], 2)
        _, (second, third) = step()
        other = RedisQueue("orders", warm.client)
        assert other.nack(second)
        again = must(other.get())
        assert (again.body, again.deliveries) == ("second", 2)
        assert step() == ([True], [third])

    def test_claims_without_an_answer_are_put_back(
        self, warm: RedisQueue, proxy: FaultProxy, through: redis.Redis
    ) -> None:
        consuming = RedisQueue("orders", through).consume(timeout=0)
        assert next(consuming).body == "first"
        proxy.drop_next_reply(10, matching=GET)
        with pytest.raises(StoreUnavailableError, match="unknown"):
            next(consuming)
        stats = warm.stats()
        assert (stats.ready, stats.in_flight, stats.acked) == (1, 1, 1)
        late = RedisQueue("orders", warm.client, clock=lambda: 2 * server_now(warm))
        late.put_back()
        assert [message.body for message in late.get_many(5)] == ["second", "third"]


def insist(step: Callable[[], Any]) -> Any:
    """Call *step* until it has an answer, twice at most."""
    try:
        return step()
    except StoreUnavailableError:
        return step()


def server_now(queue: RedisQueue) -> int:
    """Return the time of the server in milliseconds."""
    seconds, _ = queue.client.time()
    return int(seconds) * 1000
