"""Names of all Redis keys; no other module builds one.

All keys of a queue, or of a shard of a DelayQueue, share one hash tag, so each script call uses one Cluster slot:

``{<prefix>:queue:<name>}:<part>`` and ``{<prefix>:delay:<name>:<shard>}:<part>``

=========== ====== =====================================================================
part        type   holds
=========== ====== =====================================================================
meta        HASH   schema, paused, counters
records     HASH   id -> record, for each message or entry in any state
ready       LIST   ids to claim, the next one at the right end (RedisQueue only)
waiting     ZSET   id -> due time: delayed messages, or the entries of a DelayQueue
in_flight   ZSET   id -> end of its lease
leases      HASH   id -> "<deliveries> <token>" while in flight, "<deliveries>" afterwards
errors      HASH   id -> last reason for giving it back
dead        ZSET   id -> time it died
quarantine  LIST   unreadable records with id and reason
revoked     ZSET   id -> when its task was revoked, id and call -> when that call was stored since; for a day
discarded   ZSET   id of a revoked task that was sent: workers discard it -> when it was revoked; for a day
wake        LIST   at most one item, which wakes one waiting consumer; for a DelayQueue the name of a channel
leader      STRING name of the dispatcher that waits for due entries
                   (first shard of a DelayQueue only, as are the next three)
lateness    HASH   all-time totals of dispatching: sent, failed, sum_ms, and a field per bucket
minutes     HASH   minute of the day -> "<minute> <sent> <failed> <sum_ms> <worst_ms>"
dispatchers HASH   name -> "<ms when it was seen> <JSON>"
slot:<x>    STRING number and outcome of the last call of client thread x, for a minute:
                   a repeated call gets the stored outcome, a late attempt is refused
=========== ====== =====================================================================

A lock has one key, ``{<prefix>:lock:<name>}:<part>``, which expires an hour after the last use:

=========== ====== =====================================================================
holder      HASH   token and expiry of the holder, the fence, and the token that was given back last
=========== ====== =====================================================================

What workers report has keys of its own, ``{<prefix>:monitor}:<part>``:

=========== ====== =====================================================================
workers     HASH   name -> "<ms when it was seen> <JSON>": the last report of each worker
running     HASH   name -> JSON: the tasks that this worker runs
series      HASH   "<task>\\0<queue>" -> "<number> <day of the last run>"; "next": the next number
totals      HASH   number of a series -> all-time counts, without the current minute
current     HASH   "minute": its number, and number of a series -> its counts in this minute
minutes:<n> HASH   "<series>:<hour>" -> counts of each minute; "day": number of the day; n: the same modulo 3
hours:<n>   HASH   "<series>:<day>" -> counts of each hour, "<series>:<day>:sum" -> of the day;
                   "span": number of these 30 days; n: the same modulo 4
runs        HASH   id -> "<root id>\\0<JSON>", one line of JSON for each run: the latest runs that have ended
runs_order  ZSET   id -> time the run ended
trees       ZSET   "<root id>\\0<id>": the runs of one canvas
failures    HASH   id -> "<task>\\0<exception>\\0<JSON>": failed tasks and discarded messages, in groups
failed_at   ZSET   id -> time of the failure
tracebacks  HASH   id -> "<length of the traceback>\\n<traceback><packed message>"
groups      HASH   "<task>\\0<exception>" -> "<failures> <first time> <last time> <last id>"; "limits": how many
                   are kept and for how long, "not_kept": failures that were too many, and the time of the last ones
retrying    HASH   id -> "<end of the lease> <token>" while a failure is retried
slot:<x>    STRING as above
=========== ====== =====================================================================

Flows have keys of their own, ``{<prefix>:flow}:<part>``, or ``{<prefix>:flow:<global_keyprefix>}:<part>``. A *place* is
a flow, or "<flow>\\0<key>". A *ring* is "<step of the priority>\\0<queue>\\0<flow of the task>", a *group*
"<ring>\\0<key of the task>\\0<key of the queue>":

=========== ====== =====================================================================
config      HASH   flow -> "<places> <places of a key> <ms between starts> <burst> <both of a key> <1 = has
                   weights> <k: limits count for each key, f: keys take turns>", "-" = none
declared    HASH   the same as in the code
declared_by HASH   app -> JSON of the time when a worker of it started last, and of its flows as in the code
overrides   HASH   the same as set at run time; "=" for what was not set
flags       HASH   "" once there are flows; what is paused: flows of tasks, queues as ``"", "<queue>"``
running     HASH   place -> number of messages that are in flight
rates       ZSET   place -> time until which its rate is used up
held        HASH   delivery tag -> group of the message
oldest      ZSET   group with messages -> since when it has some
backlog     HASH   flow -> number of messages that wait
ungated     HASH   flow -> number of messages that passed it without being counted
owners      HASH   "<unique task>\\0<key>" -> "<token> <state and token before, or -> <state: s = is being sent,
                   d = waits in the store, w = waits, r = runs> <ms for which it is kept> <task id>" of
                   the message that owns the key
owner_ids   HASH   task id -> "<unique task>\\0<key>", of tasks for which nobody waits: what a revoke finds
owner_ends  ZSET   the same -> when the message owns the key no longer
replaced    ZSET   token of a message that must not run, or "=" and that of one that started before it was
                   confirmed -> when it is forgotten
owned       HASH   delivery tag -> "<s, e or t: until start, end, time; a capital letter if another broker delivered
                   it> <token> <unique task>\\0<key>"
list:<x>    LIST   messages of group x, newest first
ring:<x>    ZSET   groups of ring x that may have a place -> turn
open:<x>    ZSET   rings of queue x that may have a place -> step of the priority
timers:<x>  ZSET   rings and groups of queue x that wait for their rate -> time
blocked:<x> ZSET   rings and groups that wait for place x -> since when
offers      ZSET   places that were free and that more waits for -> turn
weights:<x> HASH   key of flow x -> turns of this key for one of another
keys:<x>    ZSET   key of flow x -> number of messages that wait
signal:<x>  STRING a number that changes when workers of queue x have to look
taken:<x>          key x of a Redis broker, with messages in flight, for workers whose broker is elsewhere; ``released``
                   is a LIST of messages on their way to that broker
slot:<x>    STRING as above
=========== ====== =====================================================================

Other keys under a prefix:

- ``<prefix>:registry``: HASH of all queues that were ever written to.
- ``<prefix>:starts:<task id>`` (with ``~<call>`` for delayed calls): LIST of times and hosts of the starts of a
  redelivered task, deleted when the task ends.
- ``<prefix>:audit``: LIST of changes by hand, newest first.
- ``<prefix>:operation:<id>``: STRING, for a day after an operation of the dashboard.
- ``<prefix>:probe:<x>``: STRING, while a dispatcher finds out whether the broker is this Redis.

Keys in the Redis of a Celery broker, after its ``global_keyprefix``:

- ``redis_queue:lease_ends:<x>``: ZSET of the messages in flight that workers with leases hold, delivery tag -> when its
  lease ends (s); x is kombu's index of messages in flight.
- ``redis_queue:unreadable``: LIST of unreadable messages that workers found in queues.
- ``redis_queue:counters``: HASH of outcomes of leases.
- ``redis_queue:idle:<x>``: ZSET of the idle workers that consume the queues x, channel -> when it last looked (ms).
- ``redis_queue:listener:<x>``: STRING, the channel of the worker among them that is notified of new messages.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple
from urllib.parse import quote, unquote

from redis_queue.errors import InvalidNameError, quoted

Kind = Literal["queue", "delay"]

MAX_NAME: Final = 200

_RESERVED: Final = re.compile(
    r"\{[^{}]+:(?:(?:queue|delay|lock):.*|monitor\}:.*|flow(?::[^{}]*)?\}:.*)|[^{}:]+:(?:registry|audit|(?:starts|operation|probe):.*)|redis_queue:.*",
    re.DOTALL,
)
_KEY: Final = re.compile(r"\{([^{}:]+):(queue|delay):([^{}:]+)(?::(\d{1,4}))?\}:([a-z_]+)(?::\w+)?")


def is_reserved(key: str) -> bool:
    """Return whether *key* belongs to redis_queue, under any prefix."""
    return _RESERVED.fullmatch(key) is not None


class Keys:
    """The keys of one queue, or of one shard of a DelayQueue."""

    def __init__(self, prefix: str, kind: Kind, name: str, shard: int | None = None) -> None:
        tag = f"{_escape(prefix)}:{kind}:{_escape(check_name(name))}"
        if shard is not None:
            tag += f":{shard}"
        self._root = f"{{{tag}}}:"
        self.meta = self._key("meta")
        self.records = self._key("records")
        self.ready = self._key("ready")
        self.waiting = self._key("waiting")
        self.in_flight = self._key("in_flight")
        self.leases = self._key("leases")
        self.errors = self._key("errors")
        self.dead = self._key("dead")
        self.quarantine = self._key("quarantine")
        self.revoked = self._key("revoked")
        self.discarded = self._key("discarded")
        self.wake = self._key("wake")
        self.leader = self._key("leader")
        self.lateness = self._key("lateness")
        self.minutes = self._key("minutes")
        self.dispatchers = self._key("dispatchers")

    def slot(self, client: str) -> bytes:
        """Return the key of the last outcome of one client thread."""
        return self._key(f"slot:{client}")

    def all(self) -> tuple[bytes, ...]:
        """Return all keys except the slots."""
        return (
            self.meta,
            self.records,
            self.ready,
            self.waiting,
            self.in_flight,
            self.leases,
            self.errors,
            self.dead,
            self.quarantine,
            self.revoked,
            self.discarded,
            self.wake,
            self.leader,
            self.lateness,
            self.minutes,
            self.dispatchers,
        )

    @property
    def pattern(self) -> str:
        """The pattern for SCAN that matches all keys of this queue."""
        return f"{self._root}*"

    def _key(self, part: str) -> bytes:
        return f"{self._root}{part}".encode()


class LockKeys:
    """The key of one lock."""

    def __init__(self, prefix: str, name: str) -> None:
        root = f"{{{_escape(prefix)}:lock:{_escape(check_name(name, what='lock'))}}}:"
        self.holder = f"{root}holder".encode()


class MonitorKeys:
    """The keys of what workers report under *prefix*."""

    def __init__(self, prefix: str) -> None:
        self._root = f"{{{_escape(prefix)}:monitor}}:"
        self.workers = self._key("workers")
        self.running = self._key("running")
        self.series = self._key("series")
        self.totals = self._key("totals")
        self.current = self._key("current")
        self.minutes_0, self.minutes_1, self.minutes_2 = self.minutes = tuple(
            self._key(f"minutes:{number}") for number in range(3)
        )
        self.hours_0, self.hours_1, self.hours_2, self.hours_3 = self.hours = tuple(
            self._key(f"hours:{number}") for number in range(4)
        )
        self.runs = self._key("runs")
        self.runs_order = self._key("runs_order")
        self.trees = self._key("trees")
        self.failures = self._key("failures")
        self.failed_at = self._key("failed_at")
        self.tracebacks = self._key("tracebacks")
        self.groups = self._key("groups")
        self.retrying = self._key("retrying")

    def slot(self, client: str) -> bytes:
        """Return the key of the last outcome of one client thread."""
        return self._key(f"slot:{client}")

    def all(self) -> tuple[bytes, ...]:
        """Return all keys except the slots."""
        return (
            self.workers,
            self.running,
            self.series,
            self.totals,
            self.current,
            *self.minutes,
            *self.hours,
            self.runs,
            self.runs_order,
            self.trees,
            self.failures,
            self.failed_at,
            self.tracebacks,
            self.groups,
            self.retrying,
        )

    def _key(self, part: str) -> bytes:
        return f"{self._root}{part}".encode()


class FlowKeys:
    """The keys of all flows under *prefix*. The names of the others begin as that of ``config``.

    Apps whose keys in the broker begin with a *broker_prefix* have flows of their own: they have other queues.
    """

    def __init__(self, prefix: str, broker_prefix: str = "") -> None:
        self._broker_prefix = broker_prefix
        space = f":{_escape(broker_prefix)}" if broker_prefix else ""
        self._root = f"{{{_escape(prefix)}:flow{space}}}:"
        self.config = self._key("config")
        self.declared = self._key("declared")
        self.declared_by = self._key("declared_by")
        self.overrides = self._key("overrides")
        self.flags = self._key("flags")
        self.running = self._key("running")
        self.rates = self._key("rates")
        self.held = self._key("held")
        self.oldest = self._key("oldest")
        self.backlog = self._key("backlog")
        self.ungated = self._key("ungated")
        self.owners = self._key("owners")
        self.owner_ids = self._key("owner_ids")
        self.owner_ends = self._key("owner_ends")
        self.replaced = self._key("replaced")
        self.owned = self._key("owned")

    @property
    def taken(self) -> str:
        """The prefix of kombu's keys of messages that workers took whose broker is elsewhere."""
        return f"{self._root}taken:"

    @property
    def indexes(self) -> tuple[str, str]:
        """kombu's indexes of messages in flight: of workers whose broker is this Redis, and of the others."""
        return f"{self._broker_prefix}unacked_index", f"{self.taken}unacked_index"

    def slot(self, client: str) -> bytes:
        """Return the key of the last outcome of one client thread."""
        return self._key(f"slot:{client}")

    def messages(self, group: str) -> bytes:
        """Return the key of the messages of a group."""
        return self._key(f"list:{group}")

    def keys(self, flow: str) -> bytes:
        """Return the key of the numbers of waiting messages of each key of *flow*."""
        return self._key(f"keys:{flow}")

    def timers(self, queue: str) -> bytes:
        """Return the key of what waits for its rate in *queue*."""
        return self._key(f"timers:{queue}")

    def signal(self, queue: str) -> bytes:
        """Return the key that changes when workers of *queue* have to look."""
        return self._key(f"signal:{queue}")

    @property
    def pattern(self) -> str:
        """The pattern for SCAN that matches all these keys."""
        return f"{self._root}*"

    def _key(self, part: str) -> bytes:
        return f"{self._root}{part}".encode()


class Part(NamedTuple):
    """The parts of a key of a queue: *shard* is None for a RedisQueue, *name* is such as ``ready``."""

    kind: Kind
    queue: str
    shard: int | None
    name: str


def parse(prefix: str, key: bytes) -> Part | None:
    """Return the parts of *key*, or None if it is not a key of a queue under *prefix*."""
    found = _KEY.fullmatch(key.decode(errors="replace"))
    if found is None or found[1] != _escape(prefix):
        return None
    kind: Kind = "queue" if found[2] == "queue" else "delay"
    if (kind == "delay") != (found[4] is not None):
        return None
    return Part(kind, unquote(found[3]), None if found[4] is None else int(found[4]), found[5])


def pattern(prefix: str) -> str:
    """Return the pattern for SCAN that matches the keys of all queues under *prefix*."""
    return f"{{{_escape(prefix)}:*"


def registry(prefix: str) -> bytes:
    """Return the key of the registry under *prefix*."""
    return f"{_escape(prefix)}:registry".encode()


def starts(prefix: str, task_id: str) -> bytes:
    """Return the key of the starts of a redelivered task."""
    return f"{_escape(prefix)}:starts:{task_id}".encode()


def audit(prefix: str) -> bytes:
    """Return the key of the changes by hand under *prefix*."""
    return f"{_escape(prefix)}:audit".encode()


def operation(prefix: str, operation: str) -> bytes:
    """Return the key that exists once an operation of the dashboard has begun."""
    return f"{_escape(prefix)}:operation:{_escape(operation)}".encode()


def probe(prefix: str, mark: str) -> bytes:
    """Return a key under *prefix* to find out whether two clients use the same Redis."""
    return f"{_escape(prefix)}:probe:{mark}".encode()


def lease_ends(broker_prefix: str, index: str) -> str:
    """Return the key of the ends of the leases of messages in flight, whose *index* kombu keeps.

    All keys of a broker begin with *broker_prefix*.
    """
    return f"{broker_prefix}redis_queue:lease_ends:{index}"


def unreadable(broker_prefix: str) -> bytes:
    """Return the key of the unreadable messages that workers found in queues."""
    return f"{broker_prefix}redis_queue:unreadable".encode()


def counters(broker_prefix: str) -> bytes:
    """Return the key of the counters of outcomes of leases."""
    return f"{broker_prefix}redis_queue:counters".encode()


def removals(broker_prefix: str, caller: str) -> bytes:
    """Return the key of the last outcome of a caller that removes or moves messages of a broker, as ``slot:<x>``."""
    return f"{broker_prefix}redis_queue:slot:{caller}".encode()


def idle_line(broker_prefix: str, queues: str) -> bytes:
    """Return the key of the line of idle workers that consume *queues*, a digest of their names."""
    return f"{broker_prefix}redis_queue:idle:{queues}".encode()


def idle_listener(broker_prefix: str, queues: str) -> bytes:
    """Return the key of the listener among those workers."""
    return f"{broker_prefix}redis_queue:listener:{queues}".encode()


def wake_channel(broker_prefix: str, worker: str) -> str:
    """Return the channel on which an idle worker is woken."""
    return f"{broker_prefix}redis_queue:wake:{worker}"


def check_name(name: str, *, what: str = "queue") -> str:
    """Return *name* if it is a valid name: 1 to 200 printable characters. Raises InvalidNameError."""
    if not isinstance(name, str) or not name or len(name) > MAX_NAME or not name.isprintable():
        raise InvalidNameError(f"{what} name={quoted(name)}: must be 1 to {MAX_NAME} printable characters")
    return name


def _escape(name: str) -> str:
    # Braces, colons, globs and white space have a meaning in a key, a pattern or a hash tag.
    return quote(name, safe="")
