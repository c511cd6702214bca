"""A Redis behind simulated connections: the model runs commands and scripts, this adds what belongs to connections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from hiredis import Reader

from proof.model import Model, ModelError
from proof.simulate.network import Connection
from proof.simulate.scheduler import EPOCH, SIM

MODEL: Final = Model(lambda: 0)
"""One for all schedules: it keeps the compiled scripts."""

EMPTY: Final = MODEL.save()

INFO: Final = (
    b"redis_version:7.4.0\r\nrole:master\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\nuptime_in_seconds:1000\r\n"
)

REFUSED: Final = {
    "readonly": b"-READONLY You can't write against a read only replica.\r\n",
    "busy": b"-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n",
    "loading": b"-LOADING Redis is loading the dataset in memory\r\n",
    "oom": b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
}
"""What a Redis replies that takes no writes, or nothing, for now."""

HANDSHAKE: Final = {
    b"HELLO",
    b"CLIENT",
    b"SELECT",
    b"PING",
    b"SUBSCRIBE",
    b"UNSUBSCRIBE",
    b"MULTI",
    b"DISCARD",
    b"INFO",
}


@dataclass(eq=False)
class Session:
    """What the server remembers of a connection."""

    number: int
    reader: Reader = field(default_factory=Reader)
    protocol: int = 2
    queued: list[list[bytes]] | None = None
    channels: dict[bytes, None] = field(default_factory=dict)
    tracked: dict[bytes, Any] = field(default_factory=dict)
    tracks: bool = False
    redirect: int = 0
    blocked: list[bytes] | None = None


class Server:
    """One Redis, and the faults of the whole server."""

    def __init__(self) -> None:
        self.skew = 0.0
        self.sessions: dict[Connection, Session] = {}
        self.scripts: set[bytes] | None = None
        self.refuses = ""
        self.is_down = False
        #: Machines from which nothing passes, and until when.
        self.partitioned: dict[str, float] = {}
        self.saved: object = None
        self._count = 0
        self._outbox: list[tuple[Connection, bytes]] = []
        MODEL.load(EMPTY)
        MODEL.fill(False)
        MODEL._now_us = self.now_us
        MODEL.listen(self._publish, self._listeners)

    def now_us(self) -> int:
        """Return the time of its clock."""
        return round((EPOCH + SIM.now + self.skew) * 1e6)

    # Faults.

    def restart(self, saved: object | None = None) -> None:
        """Cut all connections and forget the scripts; with *saved*, return to these keys, as a replica has them."""
        for connection in list(self.sessions):
            connection.cut()
        self.scripts = set()
        if saved is not None:
            MODEL.load(saved)

    # Connections.

    def connect(self, timeout: float | None) -> Connection:
        """Return a new connection, as redis-py makes one."""
        connection = Connection(self)
        if self.is_down:
            raise ConnectionRefusedError(111, "Connection refused")
        self._count += 1
        if connection.process is not None:
            connection.silent_until = self.partitioned.get(connection.process.machine.name, 0.0)
        connection.state = self.sessions[connection] = Session(self._count)
        connection.settimeout(timeout)
        return connection

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self.sessions.pop(connection, None)

    def received(self, connection: Connection, data: bytes) -> None:
        """Take bytes of a connection, and run the commands that are complete."""
        session = connection.state
        session.reader.feed(data)
        while command := session.reader.gets():
            reply = self._run(connection, session, command)
            if reply is not None:
                connection.reply(reply)
            outbox, self._outbox = self._outbox, []
            for other, message in outbox:
                other.reply(message)

    def _run(self, connection: Connection, session: Session, command: list[bytes]) -> bytes | None:
        name = command[0].upper()
        if self.refuses and name not in HANDSHAKE and not (self.refuses in ("oom", "readonly") and name in READS):
            return REFUSED[self.refuses]
        if session.queued is not None and name not in (b"EXEC", b"DISCARD"):
            session.queued.append(command)
            return b"+QUEUED\r\n"
        own = getattr(self, f"_do_{name.decode().lower()}", None)
        reply: bytes | None = own(connection, session, command) if own else self._execute(session, command)
        return reply

    def _execute(self, session: Session, command: list[bytes]) -> bytes:
        reply = self._call(command)
        if session.tracks and command[0].upper() in (b"EXISTS", b"MGET"):
            session.tracked |= {key: _mark(key) for key in command[1:]}
        self._after(session)
        if session.protocol == 3 and command[0].upper() == b"HGETALL" and isinstance(reply, list):
            return b"%%%d\r\n" % (len(reply) // 2) + b"".join(map(encode, reply))
        return encode(reply)

    def _call(self, command: list[bytes]) -> Any:
        name = command[0].upper()
        if self.scripts is not None and name in (b"EVALSHA", b"EVAL", b"SCRIPT"):
            if name == b"EVALSHA" and command[1] not in self.scripts:
                return ModelError("NOSCRIPT No matching script. Please use EVAL.")
            if name == b"EVAL" or command[1].upper() == b"LOAD":
                self.scripts.add(MODEL._load(command[1 if name == b"EVAL" else 2]))
        if name == b"MGET":
            return [MODEL.call(b"GET", key) for key in command[1:]]
        if name == b"COMMAND":
            # Of COMMAND INFO: it knows all of them.
            return [[asked] for asked in command[2:]]
        reply = MODEL.call(*command)
        if isinstance(reply, ModelError) and "unknown" in str(reply):
            raise NotImplementedError(f"{command}: {reply}")
        return reply

    def _after(self, writer: Session) -> None:
        """Serve those who wait for an element, and tell those who track a key of its change."""
        if not MODEL.wrote:
            return
        for connection, session in list(self.sessions.items()):
            if session.blocked is not None:
                found = self._pop(session.blocked)
                if found is not None:
                    session.blocked = None
                    self._outbox.append((connection, found))
            if session.tracked and session is not writer:
                changed = [key for key, mark in session.tracked.items() if _mark(key) != mark]
                for key in changed:
                    del session.tracked[key]
                other = next((end for end, found in self.sessions.items() if found.number == session.redirect), None)
                if changed and other is not None:
                    text = encode([b"message", b"__redis__:invalidate", changed])
                    self._outbox.append((other, text))

    def _pop(self, command: list[bytes]) -> bytes | None:
        for key in command[1:-1]:
            found = MODEL.call(b"LPOP" if command[0].upper() == b"BLPOP" else b"RPOP", key)
            if found is not None:
                return encode(found if isinstance(found, ModelError) else [key, found])
        return None

    def _publish(self, channel: bytes, message: bytes) -> int:
        text = encode([b"message", channel, message])
        found = [end for end, session in self.sessions.items() if channel in session.channels]
        for end in found:
            self._outbox.append((end, _push(text, self.sessions[end])))
        return len(found)

    def _listeners(self, channel: bytes) -> int:
        return sum(channel in session.channels for session in self.sessions.values())

    # Commands of connections.

    def _do_hello(self, _: Connection, session: Session, command: list[bytes]) -> bytes:
        session.protocol = int(command[1]) if len(command) > 1 else session.protocol
        pairs = [b"server", b"redis", b"version", b"7.4.0", b"proto", session.protocol, b"id", session.number]
        start = b"%%%d\r\n" % (len(pairs) // 2) if session.protocol == 3 else b"*%d\r\n" % len(pairs)
        return start + b"".join(map(encode, pairs))

    def _do_client(self, _: Connection, session: Session, command: list[bytes]) -> bytes:
        part = command[1].upper()
        if part == b"ID":
            return b":%d\r\n" % session.number
        if part == b"TRACKING":
            session.tracks, session.tracked = command[2].upper() == b"ON", {}
            if session.tracks:
                session.redirect = int(command[command.index(b"REDIRECT") + 1])
                if all(found.number != session.redirect for found in self.sessions.values()):
                    return b"-ERR The client ID you want redirect to does not exist\r\n"
        elif part not in (b"SETNAME", b"SETINFO"):
            return b"-ERR unknown subcommand\r\n"
        return b"+OK\r\n"

    def _do_select(self, *_: object) -> bytes:
        return b"+OK\r\n"

    def _do_info(self, *_: object) -> bytes:
        return encode(INFO)

    def _do_ping(self, _: Connection, session: Session, command: list[bytes]) -> bytes:
        if session.channels and session.protocol == 2:
            return encode([b"pong", command[1] if len(command) > 1 else b""])
        return b"+PONG\r\n" if len(command) == 1 else encode(command[1])

    def _do_subscribe(self, _: Connection, session: Session, command: list[bytes]) -> bytes:
        kind, reply = command[0].lower(), b""
        for channel in command[1:] or list(session.channels):
            if kind.startswith(b"un") or kind.startswith(b"pun"):
                session.channels.pop(channel, None)
            else:
                session.channels[channel] = None
            reply += _push(encode([kind, channel, len(session.channels)]), session)
        return reply

    _do_unsubscribe = _do_psubscribe = _do_punsubscribe = _do_subscribe

    def _do_blpop(self, connection: Connection, session: Session, command: list[bytes]) -> bytes | None:
        found = self._pop(command)
        if found is None:
            session.blocked = command
            SIM.at(SIM.now + float(command[-1]), lambda: self._give_up(connection, session, command))
        return found

    _do_brpop = _do_blpop

    def _give_up(self, connection: Connection, session: Session, command: list[bytes]) -> None:
        if session.blocked is command and connection in self.sessions:
            session.blocked = None
            connection.reply(b"*-1\r\n")

    def _do_multi(self, _: Connection, session: Session, __: list[bytes]) -> bytes:
        session.queued = []
        return b"+OK\r\n"

    def _do_discard(self, _: Connection, session: Session, __: list[bytes]) -> bytes:
        session.queued = None
        return b"+OK\r\n"

    def _do_exec(self, _: Connection, session: Session, __: list[bytes]) -> bytes:
        queued, session.queued = session.queued or [], None
        return b"*%d\r\n" % len(queued) + b"".join(self._execute(session, command) for command in queued)

    def _do_watch(self, *_: object) -> bytes:
        return b"+OK\r\n"

    _do_unwatch = _do_watch


READS: Final = {b"TIME", b"HGET", b"HGETALL", b"HMGET", b"EXISTS", b"GET", b"TYPE", b"LLEN", b"ZRANGE", b"ZCARD"}


def _mark(key: bytes) -> Any:
    kind = MODEL.call(b"TYPE", key)
    return kind, MODEL.call({b"list": b"LLEN", b"zset": b"ZCARD", b"hash": b"HLEN"}.get(kind, b"EXISTS"), key)  # type: ignore[arg-type]


def _push(text: bytes, session: Session) -> bytes:
    return b">" + text[1:] if session.protocol == 3 else text


def encode(value: Any) -> bytes:
    """Return a reply as bytes of RESP."""
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, bytes):
        return b"$%d\r\n%b\r\n" % (len(value), value)
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, ModelError):
        return b"-%b\r\n" % str(value).encode()
    return b"*%d\r\n" % len(value) + b"".join(map(encode, value))
