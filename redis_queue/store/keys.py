"""Names of all Redis keys, each declared once with its type and content; no other module builds one.

Each class stands for the keys of one owner; its scripts and the documentation know a key by the name of its attribute.
Times are in ms since the epoch. What expires is removed by Redis that long after its last use.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Literal, NamedTuple, overload
from urllib.parse import quote, unquote

from redis_queue.errors import InvalidNameError, quoted

Kind = Literal["queue", "delay"]

Type = Literal["HASH", "LIST", "STRING", "ZSET"]

MAX_NAME: Final = 200


class _Declaration:
    """What a key holds; *part* is the end of its name, that of the attribute unless given; *expires* "" = never."""

    name: str

    def __init__(self, type: Type, holds: str, *, expires: str = "", part: str = "") -> None:
        self.type: Type = type
        self.holds = holds
        self.expires = expires
        self.part = part

    def __set_name__(self, owner: type[KeyGroup], name: str) -> None:
        self.name = name
        self.part = self.part or name


class Key(_Declaration):
    """One key."""

    @overload
    def __get__(self, keys: None, owner: type[KeyGroup]) -> Key: ...
    @overload
    def __get__(self, keys: KeyGroup, owner: type[KeyGroup]) -> bytes: ...
    def __get__(self, keys: KeyGroup | None, owner: type[KeyGroup]) -> Key | bytes:
        if keys is None:
            return self
        # An attribute of its own is found first from now on.
        found = keys.__dict__[self.name] = f"{keys.root}{self.part}".encode()
        return found


class KeyOf(_Declaration):
    """Keys whose names end with ``:`` and something, x: the attribute takes it and returns the key."""

    @overload
    def __get__(self, keys: None, owner: type[KeyGroup]) -> KeyOf: ...
    @overload
    def __get__(self, keys: KeyGroup, owner: type[KeyGroup]) -> Callable[[str | int], bytes]: ...
    def __get__(self, keys: KeyGroup | None, owner: type[KeyGroup]) -> KeyOf | Callable[[str | int], bytes]:
        if keys is None:
            return self
        beginning = f"{keys.root}{self.part}:"
        # Other programs may have written a name that is not UTF-8.
        return lambda x: f"{beginning}{x}".encode(errors="surrogateescape")


class KeyGroup:
    """Keys whose names begin with *root*."""

    def __init__(self, root: str) -> None:
        self.root = root

    @classmethod
    def declarations(cls) -> dict[str, Key | KeyOf]:
        """Return the declarations by the names of the attributes."""
        return {name: value for name, value in vars(cls).items() if isinstance(value, (Key, KeyOf))}

    def all(self) -> tuple[bytes, ...]:
        """Return all keys but those of a :class:`KeyOf`."""
        return tuple(self.types())

    def types(self) -> dict[bytes, str]:
        """Return the same with their types, as TYPE returns them."""
        return {
            value.__get__(self, type(self)): value.type.lower()
            for value in self.declarations().values()
            if isinstance(value, Key)
        }

    @property
    def pattern(self) -> str:
        """The pattern for SCAN that matches all these keys."""
        return f"{self.root}*"


_SLOT: Final = KeyOf(
    "STRING",
    "number and outcome of the last call of client thread x: a repeat gets the outcome, a late attempt is refused",
    expires="a minute",
)
_KEPT: Final = "a day after the newest failure is too old"


class Keys(KeyGroup):
    """Keys of a RedisQueue, or of one shard of a DelayQueue.

    ``{<prefix>:queue:<name>}:<key>`` and ``{<prefix>:delay:<name>:<shard>}:<key>``: they share one hash tag, so each
    script call uses one Cluster slot. ``leader``, ``lateness``, ``minutes`` and ``dispatchers`` are those of the first
    shard.
    """

    meta = Key("HASH", "schema, paused, counters")
    records = Key("HASH", "id -> record, for each message or entry in any state")
    ready = Key("LIST", "ids to claim, the next one at the right end (RedisQueue only)")
    waiting = Key("ZSET", "id -> due time: delayed messages, or the entries of a DelayQueue")
    in_flight = Key("ZSET", "id -> end of its lease")
    leases = Key("HASH", 'id -> "<deliveries> <token>" while in flight, "<deliveries>" afterwards')
    errors = Key("HASH", "id -> last reason for giving it back")
    dead = Key("ZSET", "id -> time it died")
    quarantine = Key("LIST", "unreadable records with id and reason")
    revoked = Key(
        "ZSET", "id -> when its task was revoked, id and call -> when that call was stored since; removed after a day"
    )
    discarded = Key(
        "ZSET", "id of a revoked task that was sent: workers discard it -> when it was revoked; removed after a day"
    )
    wake = Key(
        "LIST",
        "at most one item, which wakes one waiting consumer; for a DelayQueue the name of a channel, for an entry that "
        "is due earlier than all others",
    )
    leader = Key("STRING", "name of the dispatcher that waits for due entries", expires="its lease")
    lateness = Key("HASH", "all-time totals of dispatching: sent, failed, times: a histogram of lateness")
    minutes = Key("HASH", 'minute of the day -> "<minute> <sent> <failed> <sum_ms> <worst_ms>"')
    dispatchers = Key("HASH", 'name -> "<ms when it was seen> <JSON>"')
    slot = _SLOT

    def __init__(self, prefix: str, kind: Kind, name: str, shard: int | None = None) -> None:
        number = "" if shard is None else f":{shard}"
        super().__init__(f"{{{_escape(prefix)}:{kind}:{_escape(check_name(name))}{number}}}:")


class ScheduleKeys(KeyGroup):
    """Keys of the schedules whose runs a DelayQueue gets, ``{<prefix>:delay:<name>:0}:schedules:<key>``.

    They have the hash tag of its first shard: a run is stored, and its schedule moves on, in one script.
    """

    schedules = Key("HASH", "schedule -> JSON of its definition", part="definitions")
    schedule_states = Key(
        "HASH",
        'schedule -> "<generation> <next due time> <known since> <runs> <skipped: late, overlap, paused, taken> '
        "<failed runs> <of them the last ones> <0, or 1 = paused> <id of the run that has not ended, or -> "
        '<since when>"',
        part="states",
    )
    schedule_looks = Key("ZSET", "schedule -> when a dispatcher has to look at it; inf = never", part="looks")
    schedule_events = Key("HASH", "schedule -> its last events, one in a line, the newest first", part="events")
    schedule_apps = Key("HASH", "app -> JSON of the versions whose schedules were declared", part="apps")

    def __init__(self, first: Keys) -> None:
        super().__init__(f"{first.root}schedules:")


class LockKeys(KeyGroup):
    """The keys of a lock, ``{<prefix>:lock:<name>}:<key>``."""

    holder = Key("HASH", "token, fence, expires_at, released: the token that was given back last", expires="an hour")
    slot = _SLOT

    def __init__(self, prefix: str, name: str) -> None:
        super().__init__(f"{{{_escape(prefix)}:lock:{_escape(check_name(name, what='lock'))}}}:")


class MonitorKeys(KeyGroup):
    """Keys of what workers report, ``{<prefix>:monitor}:<key>``."""

    workers = Key("HASH", 'name -> "<ms when it was seen> <JSON>": the last report of each worker', expires="four days")
    running = Key("HASH", "name -> JSON: the tasks that this worker runs", expires="four days")
    releases = Key(
        "HASH", 'release of the app -> "<first time> <last time>" at which a worker reported it', expires="120 days"
    )
    series = Key(
        "HASH", r'"<task>\0<queue>" -> "<number> <day of the last run>"; "next": the next number', expires="a year"
    )
    totals = Key("HASH", "number of a series -> all-time counts, without the current minute", expires="a year")
    current = Key(
        "HASH", '"minute": its number, and number of a series -> its counts in this minute', expires="four days"
    )
    minutes_0, minutes_1, minutes_2 = (
        Key(
            "HASH",
            '"<series>:<hour>" -> "<minute>=<counts>;…"; "day": number of the day, which is the same modulo 3',
            expires="four days",
            part=f"minutes:{number}",
        )
        for number in range(3)
    )
    hours_0, hours_1, hours_2, hours_3 = (
        Key(
            "HASH",
            '"<series>:<day>" -> "<hour>=<counts>;…", "<series>:<day>:sum" -> counts of the day; "span": number of '
            "these 30 days, which is the same modulo 4",
            expires="120 days",
            part=f"hours:{number}",
        )
        for number in range(4)
    )
    runs = Key(
        "HASH",
        r'id -> "<root id>\0<JSON>\n<JSON>…", the last run first: the latest runs that have ended',
        expires="four days",
    )
    runs_order = Key("ZSET", "id -> time the last run ended", expires="four days")
    trees = Key("ZSET", r'"<root id>\0<id>" -> 0: the runs of one canvas', expires="four days")
    failures = Key(
        "HASH", r'id -> "<task>\0<exception>\0<JSON>": failed tasks and discarded messages, in groups', expires=_KEPT
    )
    failed_at = Key("ZSET", "id -> time of the failure", expires=_KEPT)
    tracebacks = Key("HASH", r'id -> "<length of the traceback>\n<traceback><packed message>"', expires=_KEPT)
    groups = Key(
        "HASH",
        r'"<task>\0<exception>" -> "<failures> <first time> <last time> <last id>"; "limits": how many are kept and '
        'for how long, "not_kept": failures that were too many, and the time of the last ones',
        expires=_KEPT,
    )
    retrying = Key("HASH", 'id -> "<end of the lease> <token>" while a failure is retried', expires=_KEPT)
    slot = _SLOT

    def __init__(self, prefix: str) -> None:
        super().__init__(f"{{{_escape(prefix)}:monitor}}:")

    @property
    def minutes(self) -> tuple[bytes, ...]:
        """The keys of the days modulo 3."""
        return self.minutes_0, self.minutes_1, self.minutes_2

    @property
    def hours(self) -> tuple[bytes, ...]:
        """The keys of the spans of 30 days modulo 4."""
        return self.hours_0, self.hours_1, self.hours_2, self.hours_3


class FlowKeys(KeyGroup):
    r"""Keys of flows and unique tasks, ``{<prefix>:flow}:<key>``, or ``{<prefix>:flow:<global_keyprefix>}:<key>``.

    Apps whose keys in the broker begin with a *broker_prefix* have flows of their own: they have other queues.

    A *place* is a flow, or ``<flow>\0<key>``. A *ring* is ``<step of the priority>\0<queue>\0<flow of the task>``, a
    *group* ``<ring>\0<key of the task>\0<key of the queue>``. Scripts compute names of keys from that of ``config``.
    """

    config = Key(
        "HASH",
        'flow -> "<places> <places of a key> <ms between starts> <burst> <both of a key> <1 = has weights> '
        '<k: limits count for each key, f: keys take turns>", "-" = none',
    )
    declared = Key("HASH", "the same as in the code")
    declared_by = Key(
        "HASH", "app -> JSON of the time when a worker of it started last, and of its flows as in the code"
    )
    overrides = Key("HASH", 'the same as set at run time; "=" for what was not set')
    flags = Key("HASH", '"" once there are flows; what is paused: flows of tasks, queues as ``"", "<queue>"``')
    running = Key("HASH", "place -> number of messages that are in flight")
    rates = Key("ZSET", "place -> time until which its rate is used up")
    held = Key("HASH", "delivery tag -> group of the message")
    oldest = Key("ZSET", "group with messages -> since when it has some")
    backlog = Key("HASH", "flow -> number of messages that wait")
    uncounted = Key("HASH", "flow -> number of messages that passed it without being counted")
    owners = Key(
        "HASH",
        r'"<unique task>\0<key>" -> "<token> <state and token before, or -> <state: s = is being sent, d = waits in '
        'the store, w = waits, r = runs> <ms for which it is kept> <task id>" of the message that owns the key',
    )
    owner_ids = Key("HASH", r'task id -> "<unique task>\0<key>", of tasks for which nobody waits: what a revoke finds')
    owner_ends = Key("ZSET", r'"<unique task>\0<key>" -> when the message owns the key no longer')
    replaced = Key(
        "ZSET",
        'token of a message that must not run, or "=" and that of one that started before it was confirmed -> when it '
        "is forgotten",
    )
    owned = Key(
        "HASH",
        'delivery tag -> "<s, e or t: until start, end, time; a capital letter if another broker delivered it> <token> '
        r'<unique task>\0<key>"',
    )
    messages = KeyOf("LIST", "messages of group x, newest first", part="list")
    ring = KeyOf("ZSET", "groups of ring x that may have a place -> turn")
    open = KeyOf("ZSET", "rings of queue x that may have a place -> step of the priority")
    timers = KeyOf("ZSET", "rings and groups of queue x that wait for their rate -> time")
    blocked = KeyOf("ZSET", "rings and groups that wait for place x -> since when")
    offers = Key("ZSET", "places that were free and that more waits for -> turn")
    weights = KeyOf("HASH", "key of flow x -> turns of this key for one of another")
    rules = KeyOf(
        "HASH",
        'key of flow x -> "<places> <ms between starts> <burst> <1 = paused>" as set at run time; "=" for what was not '
        'set, "-" = none',
    )
    keys = KeyOf("ZSET", "key of flow x -> number of messages that wait")
    signal = KeyOf("STRING", "a number that changes when workers of queue x must check for messages", expires="a day")
    slot = _SLOT

    def __init__(self, prefix: str, broker_prefix: str = "") -> None:
        self._broker_prefix = broker_prefix
        space = f":{_escape(broker_prefix)}" if broker_prefix else ""
        super().__init__(f"{{{_escape(prefix)}:flow{space}}}:")

    @property
    def taken(self) -> str:
        """The prefix of kombu's keys of messages that workers took whose broker is elsewhere."""
        return f"{self.root}taken:"

    @property
    def released(self) -> str:
        """The list of messages on their way to a broker elsewhere, whose workers take no more of them."""
        return f"{self.taken}released"

    @property
    def indexes(self) -> tuple[str, str]:
        """kombu's indexes of messages in flight: of workers whose broker is this Redis, and of the others."""
        return f"{self._broker_prefix}unacked_index", f"{self.taken}unacked_index"


class PrefixKeys(KeyGroup):
    """Other keys under a prefix, ``<prefix>:<key>``."""

    registry = Key("HASH", "all queues that were ever written to")
    starts = KeyOf(
        "LIST",
        "times and hosts of the starts of a redelivered task; x is its id, with ``~<call>`` for delayed calls",
        expires="a week, or when the task ends",
    )
    audit = Key("LIST", "changes by hand, newest first")
    operation = KeyOf("STRING", "exists once operation x of the dashboard has begun", expires="a day")
    probe = KeyOf("STRING", "exists while a dispatcher finds out whether the broker is this Redis", expires="10 s")

    def __init__(self, prefix: str) -> None:
        super().__init__(f"{_escape(prefix)}:")


class BrokerKeys(KeyGroup):
    """Keys in the Redis of a Celery broker, ``<global_keyprefix>redis_queue:<key>``."""

    lease_ends = KeyOf(
        "ZSET",
        "messages in flight that workers with leases hold, delivery tag -> when its lease ends (s); x is kombu's index "
        "of messages in flight",
    )
    unreadable = Key("LIST", "unreadable messages that workers found in queues")
    counters = Key("HASH", "outcomes of leases -> how many")
    line = KeyOf(
        "ZSET",
        "idle workers that consume the queues x, by channel -> when it last looked for messages",
        expires="a minute",
        part="idle",
    )
    listener = KeyOf("STRING", "channel of the worker among them that is notified of new messages", expires="a minute")
    slot = _SLOT

    def __init__(self, broker_prefix: str) -> None:
        super().__init__(f"{broker_prefix}redis_queue:")

    def wake_channel(self, worker: str) -> str:
        """Return the channel on which an idle worker is woken."""
        return f"{self.root}wake:{worker}"


class KombuKeys(KeyGroup):
    """Keys of a Celery broker that kombu names and fills; scripts use these names."""

    index = Key("ZSET", "delivery tag -> time from which the visibility timeout counts (s)")
    unacked = Key("HASH", "delivery tag -> message, exchange and routing key as JSON")
    list = Key("LIST", "messages of one queue and priority, the oldest at the right end")
    target = Key("LIST", "messages of another queue")


KEY_GROUPS: Final = (Keys, ScheduleKeys, LockKeys, MonitorKeys, FlowKeys, PrefixKeys, BrokerKeys, KombuKeys)

TYPES: Final[dict[str, Type]] = {name: key.type for owner in KEY_GROUPS for name, key in owner.declarations().items()}
"""Type of each key, by the name that scripts use."""

_PLAIN: Final = "|".join(
    f"{key.part}:.*" if isinstance(key, KeyOf) else key.part for key in PrefixKeys.declarations().values()
)
_RESERVED: Final = re.compile(
    rf"\{{[^{{}}]+:(?:(?:queue|delay|lock):.*|monitor\}}:.*|flow(?::[^{{}}]*)?\}}:.*)|[^{{}}:]+:(?:{_PLAIN})|redis_queue:.*",
    re.DOTALL,
)
_KEY: Final = re.compile(r"\{([^{}:]+):(queue|delay):([^{}:]+)(?::(\d{1,4}))?\}:([a-z_]+)(?::\w+)?")


def is_reserved(key: str) -> bool:
    """Return whether *key* belongs to redis_queue, under any prefix."""
    return _RESERVED.fullmatch(key) is not None


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


def pattern(prefix: str, owners: str = "") -> str:
    """Return the pattern of the keys with a hash tag under *prefix*, or of those of *owners*, such as "lock:"."""
    return f"{{{_escape(prefix)}:{owners}*"


def check_name(name: str, *, what: str = "queue") -> str:
    """Return *name* if it is a valid name: 1 to 200 printable characters. Raises InvalidNameError."""
    if not is_name(name):
        raise InvalidNameError(f"{what} name={quoted(name)}: must be 1 to {MAX_NAME} printable characters")
    return name


def is_name(name: object) -> bool:
    """Return whether *name* is a valid name."""
    return isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable()


def _escape(name: str) -> str:
    # Braces, colons, globs and white space have a meaning in a key, a pattern or a hash tag.
    return quote(name, safe="")
