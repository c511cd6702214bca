"""Checks of access: passwords, encryption, and permissions of the current user."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Final

from redis_queue.doctor.finding import Check, Finding, warning
from redis_queue.doctor.roles import all_commands
from redis_queue.doctor.server import ServerInfo
from redis_queue.errors import StoreError, StoreRefusedError, StoreUnavailableError
from redis_queue.store.keys import Keys
from redis_queue.store.scripts import pairs, text


def exposure(server: ServerInfo) -> Iterator[Finding]:
    """Connections from other hosts need a password."""
    if all(server.config(name) in ("0", None) for name in ("port", "tls-port")):
        return
    user = {text(key): value for key, value in pairs(server.command("ACL", "GETUSER", "default"))}
    flags = {text(flag) for flag in user.get("flags", ())}
    if not {"on", "nopass"} <= flags or server.config("protected-mode") != "no":
        return
    addresses = [address.lstrip("-") for address in (server.config("bind") or "").split()]
    if not all(is_local(address) for address in addresses):
        yield warning(
            f"{server.label}every host that reaches this server has all permissions: no password, protected-mode no, "
            "and it listens on more than the loopback address",
            "set a password (requirepass, or ACL users as in docs/security.md), or bind 127.0.0.1",
        )


def encryption(server: ServerInfo) -> Iterator[Finding]:
    """Connections over a network are encrypted."""
    if server.host is not None and not server.tls and not is_local(server.host):
        yield warning(
            f"{server.label}the connection to {server.host} is not encrypted: others on the network can read passwords "
            "and messages",
            "use rediss://, unless the network is private",
        )


def is_local(host: str) -> bool:
    """Return whether *host* is a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in ("localhost", "ip6-localhost")


def permissions(server: ServerInfo) -> Iterator[Finding]:
    """The current user has all permissions that redis_queue needs."""
    me = text(server.command("ACL", "WHOAMI"))
    user = {text(key): value for key, value in pairs(server.command("ACL", "GETUSER", me))}
    if text(user["commands"]) == "+@all" and all(_everything(user[name]) for name in ("keys", "channels")):
        return
    keys = Keys(server.prefix, "queue", "doctor")
    try:
        missing = [name for name, command in _commands(server, keys) if not _may(server, me, command)]
    except (StoreRefusedError, StoreUnavailableError):
        raise
    except StoreError:
        yield warning(
            f"{server.label}Redis before 7 cannot tell whether the user {me} has all permissions",
            "compare its rules with docs/security.md",
        )
        return
    if missing:
        yield warning(
            f"{server.label}the Redis user {me} may not run {', '.join(missing)} on keys of this prefix",
            "ignore this for a user with a single role (docs/security.md); otherwise add these commands",
        )


def _everything(patterns: object) -> bool:
    # Redis 6.2 answers with a list, newer versions with text.
    found = patterns if isinstance(patterns, list) else [patterns]
    return any(text(pattern).lstrip("~&%RW") == "*" for pattern in found)


def _commands(server: ServerInfo, keys: Keys) -> Iterator[tuple[str, tuple[bytes | str, ...]]]:
    """Yield the name and an example of each command that redis_queue sends."""
    names = all_commands()
    for name, row in zip(names, server.command("COMMAND", "INFO", *names), strict=True):
        if name == "evalsha":
            yield name, ("EVALSHA", "0" * 40, "1", keys.wake)
        elif row:
            # The least number of words, its name included: key or channel, then arguments.
            words: tuple[bytes | str, ...] = (*name.upper().split("|"), keys.wake, "1", "1")
            yield name, words[: abs(int(row[1]))]


def _may(server: ServerInfo, user: str, command: tuple[bytes | str, ...]) -> bool:
    return text(server.command("ACL", "DRYRUN", user, *command)) == "OK"


CHECKS: Final[dict[str, Check[ServerInfo]]] = {
    "exposure": exposure,
    "encryption": encryption,
    "permissions": permissions,
}
