"""Checks of the way to a server: who may come in, who may read along, what the present user may do."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Final

from redis_queue.doctor.finding import Finding, warning
from redis_queue.doctor.server_info import Server, pairs, text
from redis_queue.errors import StoreError, StoreRefusedError, StoreUnavailableError
from redis_queue.store.keys import Keys

KEY: Final = "DEL GET HKEYS HLEN LLEN PTTL TYPE UNLINK ZCARD"
KEY_AND_ONE: Final = (
    "BLPOP HDEL HEXISTS HGET HMGET HRANDFIELD HSTRLEN LINDEX LPOS LPUSH PEXPIRE PUBLISH RPUSH SET ZRANK ZREM ZSCORE"
)
KEY_AND_TWO: Final = "HINCRBY HSET LRANGE LREM LSET LTRIM ZADD ZCOUNT ZRANGE ZRANGEBYSCORE ZREVRANGE"


def exposure(server: Server) -> Iterator[Finding]:
    """Nobody gets in from elsewhere without a password."""
    if all(server.config(name) in ("0", None) for name in ("port", "tls-port")):
        return
    user = {text(key): value for key, value in pairs(server.command("ACL", "GETUSER", "default"))}
    flags = {text(flag) for flag in user.get("flags", ())}
    if not {"on", "nopass"} <= flags or server.config("protected-mode") != "no":
        return
    addresses = [address.lstrip("-") for address in (server.config("bind") or "").split()]
    if not all(is_local(address) for address in addresses):
        yield warning(
            f"{server.label}whoever reaches this server may do everything: no password, protected-mode no, and it "
            "listens on more than the loopback address",
            "set a password (requirepass, or ACL users as in docs/security.md), or bind 127.0.0.1",
        )


def encryption(server: Server) -> Iterator[Finding]:
    """What goes over a network is encrypted."""
    if server.host is not None and not server.tls and not is_local(server.host):
        yield warning(
            f"{server.label}the connection to {server.host} is not encrypted: passwords and messages can be read on "
            "the way",
            "use rediss://, unless the network is private",
        )


def is_local(host: str) -> bool:
    """Tell whether *host* is this machine and no network lies between."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in ("localhost", "ip6-localhost")


def permissions(asked: tuple[Server, str]) -> Iterator[Finding]:
    """The present user may do all that redis_queue does."""
    server, prefix = asked
    me = text(server.command("ACL", "WHOAMI"))
    user = {text(key): value for key, value in pairs(server.command("ACL", "GETUSER", me))}
    if text(user["commands"]) == "+@all" and all(_everything(user[name]) for name in ("keys", "channels")):
        return
    keys = Keys(prefix, "queue", "doctor")
    try:
        missing = [text(command[0]).lower() for command in _commands(keys) if not _may(server, me, command)]
    except (StoreRefusedError, StoreUnavailableError):
        raise
    except StoreError:
        yield warning(
            f"{server.label}Redis before 7 cannot tell whether the user {me} may do all that is needed",
            "compare its rules with docs/security.md",
        )
        return
    if missing:
        yield warning(
            f"{server.label}the Redis user {me} may not run {', '.join(sorted(missing))} on keys of this prefix",
            "fine for a user with one role (docs/security.md); else give it these",
        )


def _everything(patterns: object) -> bool:
    # Redis 6.2 answers with a list, later ones with the rules as text.
    found = patterns if isinstance(patterns, list) else [patterns]
    return any(text(pattern).lstrip("~&%RW") == "*" for pattern in found)


def _commands(keys: Keys) -> list[tuple[bytes | str, ...]]:
    """Return a call of each command that the scripts and the queues use."""
    key = keys.wake
    return [
        ("TIME",),
        ("EVALSHA", "0" * 40, "1", key),
        *((name, key) for name in KEY.split()),
        *((name, key, "1") for name in KEY_AND_ONE.split()),
        *((name, key, "1", "1") for name in KEY_AND_TWO.split()),
    ]


def _may(server: Server, user: str, command: tuple[bytes | str, ...]) -> bool:
    return text(server.command("ACL", "DRYRUN", user, *command)) == "OK"
