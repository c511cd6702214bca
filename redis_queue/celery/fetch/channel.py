"""FetchingChannel: atomic fetch and batched settling in a channel of kombu's Redis transport.

The lists and records are kombu's own, so stock workers may consume the same queues.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Iterator
from queue import Empty
from typing import Any, Final, Protocol

import redis
from kombu.transport.redis import Channel
from kombu.utils.scheduling import priority_cycle

from redis_queue.basics.lazy_property import LazyProperty
from redis_queue.basics.logs import logger_of
from redis_queue.basics.times import monotonic
from redis_queue.celery.admission.admission import Admission, Capacity, FlowRequest, Move, has_place, task_id_of
from redis_queue.celery.fetch.fetch import Fetch, FetchReply, ListRequest, MessageList, PendingFetch
from redis_queue.celery.fetch.message import Durations, FetchedMessage, FlowTurns
from redis_queue.celery.fetch.poller import FetchingPoller
from redis_queue.celery.fetch.settlement import DELAY, Settlement
from redis_queue.celery.kombu.connection import client_of
from redis_queue.celery.kombu.internals import FETCH_IS_OFF
from redis_queue.celery.message.headers import FlowHeader
from redis_queue.store.chunks import CHUNK
from redis_queue.store.redis_errors import is_refused, translate

logger = logger_of(__name__)

TURN: Final = 0.005
"""Seconds for which messages are delivered before the event loop gets a turn."""

CHECKS_PER_LEASE: Final = 6
"""Looks of an idle worker for messages per lease, at least."""


class ChannelLeases(Protocol):
    """The leases of the messages of a channel, and what its worker keeps from one connection to the next."""

    #: Seconds for which Redis keeps a message for its worker without a renewal.
    lease: float
    #: Fetches whose replies were lost with their connections.
    unread: list[PendingFetch]
    #: Whether the event loop has ended, so that only ending tasks still call the channels.
    loop_has_ended: bool
    settlement: Settlement
    admission: Admission

    def settle_waiting(self) -> None:
        """Settle all messages that are to be settled, by a connection of its own."""


class FetchingChannel(Channel):
    """Channel that fetches and settles in batches; it uses BRPOP for consumers without acknowledgements."""

    Message = FetchedMessage

    leases: ChannelLeases
    _fetch: Fetch | None = None
    #: Tags of consumers without acknowledgements.
    _no_ack: frozenset[str] = frozenset()
    #: Whether Redis refused a command of atomic fetch: then this channel consumes as kombu does.
    _refused = False
    #: Whether a batch was settled since the last fetch: the next one asks for whatever there is room for.
    _fills_up = False
    #: When to call :meth:`settle`, on the monotonic clock.
    settles_at = math.inf

    #: Fetched messages that are not delivered to Celery yet.
    _received = LazyProperty[deque[FetchedMessage]](lambda _: deque())
    #: Seconds that handing on the last message of a task took; a solo pool runs the task meanwhile.
    _durations = LazyProperty[Durations](lambda _: Durations())

    @LazyProperty
    def _flow_turns(self) -> FlowTurns:
        return FlowTurns(self.leases.admission, lambda: self._capacity().free + len(self._received))

    @property
    def fetches(self) -> bool:
        """Whether this channel uses atomic fetch."""
        return not self._no_ack and not self._refused

    @property
    def has_messages(self) -> bool:
        """Whether there are fetched messages that can be delivered now."""
        return bool(self._received) and not self._flow_turns.waits(self._received[0])

    @property
    def _poller(self) -> FetchingPoller:
        found: FetchingPoller = self.connection.cycle
        return found

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **options: Any) -> Any:
        if no_ack and queue not in self._fanout_queues:
            self._no_ack |= {consumer_tag}
            self.stop_fetching()
        if self._fetch is not None:
            # It waits for messages of the other queues.
            self._fetch.is_due = True
        return super().basic_consume(queue, no_ack, callback, consumer_tag, **options)

    def _basic_cancel(self, consumer_tag: str) -> Any:
        self._no_ack -= {consumer_tag}
        found = super()._basic_cancel(consumer_tag)
        self._return_foreign()
        if self._fetch is not None and not self.active_queues:
            with self._ended_by_errors():
                self._fetch.leave()
        return found

    def fetch_if_needed(self) -> None:
        """Ask for messages if there may be any and the worker has room for them; called before each poll."""
        with self._ended_by_errors():
            fetch = self._fetch or self._start_fetching()
            capacity = self._capacity()
            if self.leases.admission.left and capacity.is_worth_asking:
                fetch.is_due = True
            if fetch.is_due and not fetch.is_asking:
                self._ask(fetch, capacity)
            self._look_again(fetch)

    def settle_later(self, tag: str) -> bool:
        """Settle a message with the next batch; False if this channel is closed."""
        if self._fetch is None:
            return False
        settlement, admission = self.leases.settlement, self.leases.admission
        settlement.add(tag)
        admission.ends.note()
        due_at = settlement.due_at
        if has_place(tag):
            due_at = min(due_at, self._flow_turns.end(self.qos.message_of(tag), self._capacity().free))
        if self._active_queues and not self.leases.loop_has_ended:
            self._settle_by(due_at)
        else:
            # The worker shuts down, and its event loop has ended.
            self.settle_now()
        if self._received:
            # A process is free for a message that waits; the event loop of a pool of threads does not see it.
            self._poller.wake()
        return True

    def settle(self) -> None:
        """Send all that is to be settled, and ask for as many messages as the worker has room for."""
        if self._fetch is not None:
            self._fills_up = True
            # Its place may be free for the next message of its flow.
            self._fetch.is_due = self._fetch.is_due or self.leases.settlement.has_places
            if self.active_queues and self.qos.can_consume():
                self.fetch_if_needed()
            self.flush()

    def settle_now(self) -> None:
        """Send all that is to be settled, or send it on the next connection if this one is lost."""
        with contextlib.suppress(OSError, redis.RedisError):
            self.flush()

    def flush(self) -> None:
        """Send all that is to be settled."""
        if self._fetch is not None:
            with self._ended_by_errors():
                self.leases.settlement.flush(self._fetch.commands)
            self.settles_at = math.inf

    def look(self) -> None:
        """Look for messages without a wake-up if it is time, and check that the connections are alive."""
        if self._fetch is not None:
            with self._ended_by_errors():
                self._fetch.look()
                # Other workers may have processes for them.
                self._put_back(self._flow_turns.overdue(self._received))
                self._look_again(self._fetch)

    def deliver_received(self) -> bool:
        """Hand messages on to the worker for one turn; return whether there were any.

        A solo pool runs the task of a message meanwhile. A task that may take longer than a turn begins one: what was
        done before is settled, and no fetched message waits on the socket, where its lease would not be renewed.
        """
        began = now = monotonic()
        handed = 0
        while self.has_messages and now - began < TURN and self.qos.can_consume():
            if self._durations.of(self._received[0]) >= TURN and (handed or not self._prepare_for_long_task()):
                break
            # Not before: replies that came meanwhile may have put another message first.
            message = self._received.popleft()
            handed += 1
            self._queue_cycle.rotate(message.queue)
            before = message.handed_at = now
            self.connection._deliver(message, message.queue)
            now = monotonic()
            self._durations.note(message, now - before)
        return handed > 0

    def stop_fetching(self) -> None:
        """Settle what is to be settled, let another worker listen, and close the connections."""
        fetch = self._fetch
        if fetch is None:
            return
        with contextlib.suppress(OSError, redis.RedisError):
            self.leases.settlement.flush(fetch.commands)
            fetch.leave()
            fetch.commands.wait()
        self._end_fetch()

    def close(self) -> None:
        """Close the channel, and return the messages that were not settled."""
        self.stop_fetching()
        while self._received:
            # It is returned with all other messages that were not settled.
            message = self._received.popleft()
            self.qos.append(message, message.delivery_tag)
        super().close()

    def _after_fork(self) -> None:
        super()._after_fork()
        # A child of the pool must not keep them open: for Redis, a worker that was killed would still be there.
        fetch, self._fetch = self._fetch, None
        if fetch is not None:
            fetch.close()

    def _start_fetching(self) -> Fetch:
        self._fetch = fetch = Fetch(
            client_of(self),
            self.leases.admission,
            self.global_keyprefix or "",
            longest_look=self.leases.lease / CHECKS_PER_LEASE,
        )
        self._return_unread()
        self._poller.watch(self, fetch.commands.socket, self._read_replies)
        self._poller.watch(self, fetch.wakeups.socket, self._read_wakeups)
        return fetch

    def _return_unread(self) -> None:
        """Return the messages of fetches whose replies were lost, which would wait until their leases end."""
        unread = self.leases.unread
        while unread:
            self.qos.return_fetch(unread[-1])
            unread.pop()

    def _end_fetch(self) -> None:
        fetch, self._fetch = self._fetch, None
        if fetch is not None:
            self._poller.forget(self)
            fetch.close()
            self.leases.settlement.reclaim()
            self.leases.unread += filter(None, (fetch.pending_flows, fetch.pending))

    @contextlib.contextmanager
    def _ended_by_errors(self) -> Iterator[None]:
        try:
            yield
        except redis.ResponseError as error:
            self._end_fetch()
            if not is_refused(error):
                raise
            self._refused = True
            logger.warning(
                "%s: %s; docs/security.md lists what workers need",
                FETCH_IS_OFF,
                translate(error),
                extra={"action": "fetch_refused"},
            )
            self.leases.settle_waiting()
        except BaseException:
            self._end_fetch()
            raise

    def _read_replies(self) -> None:
        fetch = self._fetch
        if fetch is not None:
            with self._ended_by_errors():
                fetch.commands.read()
        if not self.deliver_received():
            raise Empty

    def _read_wakeups(self) -> None:
        fetch = self._fetch
        if fetch is not None:
            with self._ended_by_errors():
                fetch.wake_up()
        raise Empty

    def _look_again(self, fetch: Fetch) -> None:
        self._poller.look_at(min(fetch.next_look, self._flow_turns.returns_at))

    def _ask(self, fetch: Fetch, capacity: Capacity) -> None:
        """Ask for messages if the worker has room for enough of them."""
        room = self._room() - len(self._received)
        if self.leases.admission.competes:
            # More taken ahead would keep the processes from messages of flows, and these from others.
            if self._fills_up or capacity.is_worth_asking:
                self._request(fetch, min(room, capacity.room), capacity)
        elif room > 0 and (self._fills_up or not self._is_busy() or 2 * room >= self.qos.prefetch_count):
            self._request(fetch, room, capacity)
        elif room > 0:
            # More room may come: half a window is asked for at once, less with the next batch to settle.
            self._settle_by(monotonic() + DELAY)

    def _request(self, fetch: Fetch, room: int, capacity: Capacity) -> None:
        """Ask for up to *room* messages: from lists, and as many as *capacity* allows of flows."""
        queues = self._queue_cycle.consume(len(self.active_queues))
        if not queues or room <= 0:
            return
        prefix = self.global_keyprefix or ""
        lists = [
            MessageList(f"{prefix}{self._q_for_pri(queue, step)}", queue)
            for step in self.priority_steps
            for queue in queues
        ]
        self._fills_up = False
        of_lists, of_flows = self._flow_turns.share(room, capacity, lists_had_messages=fetch.lists_had_messages)
        turns = not isinstance(self._queue_cycle, priority_cycle)
        request = ListRequest(lists=lists, queues=queues, limit=of_lists, turns=turns, on_reply=self._take_in)
        fetch.send(request, self._flow_request(of_flows), before=self.leases.settlement.calls(fetch.commands))
        # All that waited is settled with it.
        self.settles_at = math.inf

    def _flow_request(self, limit: int) -> FlowRequest | None:
        """Return the request for up to *limit* messages of flows, which frees places; None if there are no flows."""
        admission = self.leases.admission
        if not admission.in_use:
            return None
        at_once = max(0, min(limit, admission.capacity(len(self._received)).free))
        settled, on_settled = self.leases.settlement.with_places()
        return FlowRequest(limit, at_once, settled, on_settled, on_reply=self._take_in_of_flows)

    def _settle_by(self, at: float) -> None:
        self.settles_at = min(self.settles_at, at)
        self._poller.settle_at(self.settles_at)

    def _capacity(self) -> Capacity:
        return self.leases.admission.capacity(len(self._received), self.qos.prefetch_count)

    def _is_busy(self) -> bool:
        """Return whether the worker has messages that are not settled."""
        qos = self.qos
        return bool(self._received) or len(qos._delivered) > len(qos._dirty)

    def _room(self) -> int:
        """Return how many messages the worker can take now, those that it has not delivered among them."""
        if "can_consume" in vars(self.qos):
            # With disabled prefetch, Celery decides before each message whether it takes one.
            return 1
        room = self.qos.can_consume_max_estimate()
        return CHUNK if room is None else min(room, CHUNK)

    def _prepare_for_long_task(self) -> bool:
        """Settle, and read what was fetched; return whether there is still a message to deliver."""
        self.flush()
        if self._fetch is not None and self._fetch.is_asking:
            with self._ended_by_errors():
                self._fetch.commands.wait()
        return self.has_messages

    def _take_in(self, fetched: FetchReply) -> None:
        received: list[FetchedMessage] = []
        moves: list[Move] = []
        unreadable = []
        for queue, item, tag in fetched.messages:
            try:
                message = FetchedMessage.read(item, tag, queue, self)
                header = FlowHeader.of(message.headers) if self.leases.admission.here and not has_place(tag) else None
                if header is None:
                    received.append(message)
                else:
                    moves.append(self._move(message, item, header))
            except Exception:
                logger.exception("cannot read a message of queue %s", queue, extra={"action": "message_unreadable"})
                unreadable.append((tag, item))
        self.qos.record(received, fetched.since, fetched.score)
        self._received += received
        # They are not held: after an error a sweep puts them aside once their leases end.
        for tag, item in unreadable:
            self.qos.put_aside(tag, item)
        self._put_into_backlog(moves)
        self._return_foreign()

    def _take_in_of_flows(self, fetched: FetchReply) -> None:
        before = len(self._received)
        self._take_in(fetched)
        if self._flow_turns.come_first:
            # Those of lists, which hold no place, wait behind them.
            self._received.rotate(len(self._received) - before)
        self._poller.look_at(self._flow_turns.begin_wait())
        # Lists and flows are asked at once: those for which there is no room would hold places without running.
        self._put_back(list(self._received)[max(0, self._room()) :])

    def _move(self, message: FetchedMessage, item: bytes, header: FlowHeader) -> Move:
        step = self.priority(self._get_message_priority(message._raw))
        return Move(message.delivery_tag, task_id_of(message._raw), item, message.queue, step, header)

    def _put_into_backlog(self, moves: list[Move]) -> None:
        """Let messages of flows wait for admission: a dispatcher or a stock worker has put them into a list.

        If they cannot be moved, they stay in flight until their leases end.
        """
        fetch = self._fetch
        if moves and fetch is not None:
            fetch.commands.send([self.leases.admission.put_behind(fetch.commands, move) for move in moves])

    def _return_foreign(self) -> None:
        """Return the messages of queues that are not consumed any longer."""
        self._put_back([message for message in self._received if message.queue not in self._active_queues])

    def _put_back(self, messages: list[FetchedMessage]) -> None:
        """Return received *messages* to their queues; after an error the rest is delivered."""
        with contextlib.suppress(OSError, redis.RedisError):
            # The first one of them comes first again.
            for message in reversed(messages):
                self.qos.put_back(message.delivery_tag)
                self._received.remove(message)
