"""Flows: read and change the limits, rates and pauses of queues and tasks at run time."""

from __future__ import annotations

import builtins
import contextlib
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from redis_queue.admission.flow_keys import OWN, SAME, KeysOfFlows, place_of, whole_number
from redis_queue.admission.rules import (
    FAIR,
    KEYED,
    Flow,
    FlowLimits,
    FlowState,
    KeyState,
    burst_of,
    check_number,
    interval_ms,
    read_token,
    token,
)
from redis_queue.basics.key_template import check_key
from redis_queue.basics.options import did_you_mean
from redis_queue.errors import InvalidValueError
from redis_queue.store.chunks import CHUNK, check_limit, chunks
from redis_queue.store.connection import Client
from redis_queue.store.ids import id_bytes, id_text
from redis_queue.store.keys import MAX_NAME, FlowKeys
from redis_queue.store.scripts import BatchCall, Scripts

OF_QUEUE: Final = "queue:"
"""How the name of the flow of a queue begins; the flow of a task has the name of the task."""

MAX_FLOWS: Final = 10_000
PAGE: Final = 200
"""Maximum number of members that one call reads or changes."""

_NOT_SET: Final = dict.fromkeys((*(item.name for item in fields(FlowLimits)), "weights", "kind"), "=")
"""The parts of the text that scripts read for limits, and the text of each that was not set at run time."""

_AS_BEFORE: Final[Mapping[str, Any]] = {"declared_now": "", "set": "", "paused": "", "forget": 0, "more": ()}
"""Arguments of the script that changes a flow, which leave it as it is."""

KINDS: Final = {KEYED: "key", FAIR: "fair"}


class NoChange:
    """Stands for an argument that was not given."""


UNCHANGED: Final = NoChange()

Whole = int | None | NoChange
Rate = str | None | NoChange


@dataclass(frozen=True, slots=True)
class Changes:
    """New limits and rates of a flow, as a user writes them."""

    limit: Whole = UNCHANGED
    rate: Rate = UNCHANGED
    limit_each: Whole = UNCHANGED
    rate_each: Rate = UNCHANGED
    burst: int | NoChange = UNCHANGED

    def _given(self) -> dict[str, Any]:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if value is not UNCHANGED}

    def check(self) -> None:
        """Raise InvalidValueError for invalid values, or if there are none."""
        given = self._given()
        if not given:
            raise InvalidValueError("set(): expected limit=, rate=, limit_each=, rate_each= or burst=")
        for name, value in given.items():
            if name == "burst" and value is None:
                raise InvalidValueError("burst=None: must be a whole number; a new rate has its default burst")
            if name.startswith("rate"):
                interval_ms(name, value)
            else:
                check_number(name, value)

    def of(self, state: FlowState) -> dict[str, str]:
        """Return the new values of the fields of FlowLimits, as scripts read them. Raises InvalidValueError."""
        given, is_fair, is_keyed = self._given(), state.kind == KINDS[FAIR], state.kind == KINDS[KEYED]
        if not is_fair and given.keys() & {"limit_each", "rate_each"}:
            raise InvalidValueError(
                f"{state.name}: limit_each= and rate_each= need a flow with fair=; use limit= and rate="
            )
        found: dict[str, float | None] = {}
        for name, value in given.items():
            place = f"{name}_each" if is_keyed else name
            if name.startswith("limit"):
                found[place] = value
            elif name.startswith("rate"):
                found[f"{place}_ms"] = interval_ms(name, value)
                if value is not None:
                    # Its own default, unless a burst is given.
                    found[place.replace("rate", "burst")] = burst_of(value)
            else:
                found |= dict.fromkeys(("burst", "burst_each") if is_fair else (place,), value)
        return {name: token(value) for name, value in found.items()}

    def of_key(self, state: FlowState) -> dict[str, str]:
        """Return the new values of one key, by the names of :attr:`KeyState.own`. Raises InvalidValueError."""
        given = self._given()
        if given.keys() & {"limit_each", "rate_each"}:
            raise InvalidValueError(f"{state.name}: of one key, use limit= and rate=, not limit_each= and rate_each=")
        found = {name: token(value) for name, value in given.items() if name != "rate"}
        if "rate" in given:
            rate = given["rate"]
            found = {"rate_ms": token(interval_ms("rate", rate)), "burst": token(burst_of(rate)), **found}
        return found


class Flows:
    """The flows under *prefix*. Creating it does no I/O; all methods raise StoreError.

    *broker_prefix* is the ``global_keyprefix`` of their app. *own* returns the flows of an app: they are known, and
    declared when they are changed first, even if its workers have not started.

    A flow is a queue, ``queue:<name>``, or the name of a task. Others are known once an app with flow control has
    declared them. Any queue can be paused.
    """

    def __init__(
        self, client: Client, prefix: str, *, own: Callable[[], Mapping[str, Flow]] = dict, broker_prefix: str = ""
    ) -> None:
        self._own = own
        self._scripts = Scripts(client)
        #: Their keys in Redis.
        self.redis_keys = FlowKeys(prefix, broker_prefix)
        self._configure = self._scripts.bind("admission/configure", self.redis_keys)
        self._reconsider = self._scripts.bind("admission/reconsider", self.redis_keys)
        #: The keys of the flows.
        self.of_keys = KeysOfFlows(self._scripts, self.redis_keys)

    def declare(self, flows: Mapping[str, Flow]) -> None:
        """Write the limits and rates of *flows* as they are in the code; those that were set stay in force.

        A few round trips for 500 flows, and more for those that have changed and whose messages wait.
        """
        for chunk in chunks(flows.items()):
            fields = [id_bytes(check_flow_name(name)) for name, _ in chunk]
            hashes = (self.redis_keys.declared, self.redis_keys.config)
            known = [self._scripts.command("HMGET", key, *fields) for key in hashes]
            changed = {
                name: flow
                for (name, flow), declared, config in zip(chunk, *known, strict=True)
                # Weights stand in another key.
                if flow.weights or declared != flow.rules.encode() or config is None
            }
            replies = self._scripts.each([self._declaring(name, flow) for name, flow in changed.items()])
            self._look_again([name for name, reply in zip(changed, replies, strict=True) if reply()])

    def _declaring(self, name: str, flow: Flow) -> BatchCall:
        weights = itertools.chain(*((key, f"{weight:g}") for key, weight in flow.weights.items()))
        arguments = {**_AS_BEFORE, "declared_now": flow.rules, "more": list(weights)}
        return self._configure.batch_call(flow=name, flag=flag_of(name), **arguments)

    def set(
        self,
        name: str,
        *,
        limit: Whole = UNCHANGED,
        rate: Rate = UNCHANGED,
        limit_each: Whole = UNCHANGED,
        rate_each: Rate = UNCHANGED,
        burst: int | NoChange = UNCHANGED,
        key: str | None = None,
    ) -> FlowState:
        """Change limits and rates of the flow *name* for all workers, until :meth:`reset`. None removes a limit.

        They have the meaning of :class:`redis_queue.Flow`; limit=0 admits none, and a new rate has its default burst
        unless *burst* is given. With *key*, limit and rate are those of this key alone, up to 1,000 keys of a flow.
        Messages that run go on. Raises InvalidValueError for invalid values, unknown flows, and flows without keys.
        """
        changes = Changes(limit, rate, limit_each, rate_each, burst)
        changes.check()
        state = self._known(name)
        if key is None:
            before = _tokens(self._scripts.command("HGET", self.redis_keys.overrides, name.encode())) or dict(_NOT_SET)
            self._change(name, set=" ".join((before | changes.of(state)).values()))
        else:
            self._change_key(state, key, changes.of_key(state))
        return self._known(name)

    def pause(self, name: str, *, key: str | None = None) -> None:
        """Start no more messages of *name* until :meth:`resume`: not even those that have no flow, if it is a queue.

        With *key*, only those of this key wait. What runs goes on. Raises InvalidValueError for an unknown flow of a
        task, and with *key* for a flow without keys.
        """
        self._flag(name, key, paused=True)

    def resume(self, name: str, *, key: str | None = None) -> None:
        """End a pause; no-op if *name*, or the *key* of it, is not paused."""
        self._flag(name, key, paused=False)

    def reset(self, name: str, *, key: str | None = None) -> FlowState:
        """Undo all that :meth:`set` has changed, and forget how far the rate of the whole flow is used up.

        What was set for single keys stays. With *key*, only what was set for this one is undone.
        """
        state = self._known(name)
        if key is None:
            self._change(name, set=" ".join(_NOT_SET.values()), forget=1)
        else:
            self._change_key(state, key, dict.fromkeys(OWN, SAME), forget=True)
        return self._known(name)

    def count_uncounted(self, counts: Mapping[str, int]) -> None:
        """Count messages that have passed flows uncounted, by flow."""
        for name, count in counts.items():
            self._scripts.command("HINCRBY", self.redis_keys.uncounted, id_bytes(name), count)

    def get(self, name: str) -> FlowState | None:
        """Return the flow *name*, or None if it is unknown."""
        check_flow_name(name)
        return next((state for state in self.states([name])), None)

    def find(self, name: str) -> FlowState:
        """Return the flow *name*. Raises InvalidValueError, with a suggestion, for an unknown one."""
        found = self.get(name)
        if found is None:
            known = self.names()
            hint = did_you_mean(name, known) if known else "there are none"
            raise InvalidValueError(f"unknown flow {name!r}: {hint}")
        return found

    def list(self) -> builtins.list[FlowState]:
        """Return all known flows, and all paused queues, by name."""
        return self.states(self.names()[:MAX_FLOWS])

    def names(self, part: str = "") -> builtins.list[str]:
        """Return the names of all known flows, and of all paused queues, that contain *part*, in order."""
        known = {id_text(name) for name in self._scripts.command("HKEYS", self.redis_keys.config)} | self._own().keys()
        return sorted(name for name in known.union(self.paused_queues()) if part in name)

    def states(self, names: Sequence[str]) -> builtins.list[FlowState]:
        """Return the flows *names*, without unknown ones; O(names)."""
        if not names:
            return []
        keys = self.redis_keys
        fields = [id_bytes(name) for name in names]
        hashes = (keys.config, keys.declared, keys.running, keys.backlog, keys.uncounted)
        columns = [self._scripts.command("HMGET", key, *fields) for key in hashes]
        flags = self._scripts.command("HMGET", keys.flags, *(id_bytes(flag_of(name)) for name in names))
        found, own = [], self._own()
        for name, rules, declared, running, waiting, uncounted, flag in zip(names, *columns, flags, strict=True):
            in_force = own[name].rules.encode() if rules is None and name in own else rules
            if in_force is None and flag is None:
                continue
            limits, kind = limits_of(in_force)
            found.append(
                FlowState(
                    name,
                    limits,
                    # A producer that has sent a message before it is declared has the same code.
                    limits_of(in_force if declared is None else declared)[0],
                    KINDS.get(kind, ""),
                    flag is not None,
                    whole_number(running),
                    whole_number(waiting),
                    whole_number(uncounted),
                )
            )
        return found

    def paused_queues(self) -> builtins.list[str]:
        """Return the names of the flows of all paused queues."""
        found = []
        for field in self._scripts.command("HKEYS", self.redis_keys.flags):
            exchange, _, queue = id_text(field).partition(", ")
            # An unreadable one of another program must not hide the others.
            with contextlib.suppress(ValueError, RecursionError):
                if exchange == '""' and isinstance(name := json.loads(queue), str):
                    found.append(check_flow_name(f"{OF_QUEUE}{name}"))
        return sorted(found)

    def keys(self, name: str, limit: int = 100) -> builtins.list[KeyState]:
        """Return up to *limit* (1 to 500) keys of the flow *name*, those with most waiting messages first."""
        check_limit(limit, CHUNK)
        check_flow_name(name)
        of_keys = self.of_keys
        waiting = of_keys.waiting(name, 0, limit)
        # Without room for keys that have no waiting messages, there is no need to look for them.
        running = of_keys.running(name) if len(waiting) < limit else {}
        others = sorted(running.keys() - set(waiting), key=lambda key: (-running[key], key))
        return of_keys.states(name, [*waiting, *others][:limit])

    def key(self, name: str, key: str) -> KeyState:
        """Return one *key* of the flow *name*, also one of which nothing waits.

        Raises InvalidValueError for an unknown flow, one without keys, and a text that is no key.
        """
        return self.of_keys.states(check_keyed(self.find(name), key).name, [key])[0]

    def _known(self, name: str) -> FlowState:
        check_flow_name(name)
        own = self._own()
        if name in own and not self._scripts.command("HEXISTS", self.redis_keys.declared, name.encode()):
            self.declare({name: own[name]})
        return self.find(name)

    def _flag(self, name: str, key: str | None, *, paused: bool) -> None:
        check_flow_name(name)
        if key is not None:
            self._change_key(self._known(name), key, {}, paused=str(int(paused)))
            return
        if not name.startswith(OF_QUEUE):
            self._known(name)
        self._change(name, paused=int(paused))

    def _change_key(self, state: FlowState, key: str, texts: Mapping[str, str], **arguments: Any) -> None:
        self.of_keys.change(check_keyed(state, key).name, key, texts, **arguments)
        # As after a change of the flow.
        self._offer([id_bytes(place_of(state.name, key))])
        if texts:
            self._look_at_rates([state.name])

    def _change(self, name: str, **arguments: Any) -> None:
        check_flow_name(name)
        self._configure(flow=name, flag=flag_of(name), **{**_AS_BEFORE, **arguments})
        # Also if nothing has changed: a call before this one may have been cut off.
        self._look_again([name])

    def _look_again(self, names: Sequence[str]) -> None:
        """Check again what waits for a place or a rate of the flows *names*, 200 at a time."""
        sizes = self._scripts.each([self._scripts.read_call("ZCARD", self.redis_keys.keys(name)) for name in names])
        self._offer([id_bytes(name) for name in names])
        for name in (name for name, size in zip(names, sizes, strict=True) if size()):
            for page in self._scripts.scan("ZSCAN", self.redis_keys.keys(name), count=PAGE):
                self._offer([id_bytes(place_of(name, id_text(key))) for key, _ in page])
        if names:
            self._look_at_rates(names)

    def _offer(self, places: Iterable[bytes]) -> None:
        """Offer free *places* to what waits for them."""
        for page in chunks(places, PAGE):
            self._reconsider(limit=0, places=len(page), more=page)

    def _look_at_rates(self, names: Sequence[str]) -> None:
        """Check again what waits for a rate in the queues of the flows *names*, and in those with waiting messages."""
        waiting = [id_text(flow) for flow in self._scripts.command("HKEYS", self.redis_keys.backlog)]
        queues = sorted({flow.removeprefix(OF_QUEUE) for flow in (*names, *waiting) if flow.startswith(OF_QUEUE)})
        timers = [self._scripts.read_call("ZCARD", self.redis_keys.timers(queue)) for queue in queues]
        sizes = {queue: size() for queue, size in zip(queues, self._scripts.each(timers), strict=True)}
        # Workers are told of these, too.
        for page in chunks((id_bytes(queue) for queue, size in sizes.items() if not size), PAGE):
            self._reconsider(limit=0, places=0, more=page)
        for queue, size in sizes.items():
            # As many passes as there are entries: what workers compute again meanwhile need not be looked at again.
            for _ in range(size // PAGE + 1 if size else 0):
                if not self._reconsider(limit=PAGE, places=0, more=[id_bytes(queue)]):
                    break


def check_keyed(state: FlowState, key: str) -> FlowState:
    """Return *state* if it can have this *key*. Raises InvalidValueError."""
    check_key(key)
    if not state.kind:
        raise InvalidValueError(f"key={key!r}: {state.name} has no keys; give it key= or fair= in the code")
    return state


def check_flow_name(name: str) -> str:
    """Return *name* if a flow can have it. Raises InvalidValueError."""
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= MAX_NAME + len(OF_QUEUE):
        raise InvalidValueError(f"flow {str(name)[:60]!r}: must be 1 to {MAX_NAME} printable characters")
    if name == OF_QUEUE:
        raise InvalidValueError(f"flow {name!r}: must be followed by the name of a queue")
    return name


def route_of(queue: str) -> str:
    """Return exchange and routing key of a message of *queue* as JSON, as kombu's records have them."""
    return f'"", {json.dumps(queue)}'


def flag_of(name: str) -> str:
    """Return the field of the pauses for the flow *name*."""
    return route_of(name.removeprefix(OF_QUEUE)) if name.startswith(OF_QUEUE) else name


def limits_of(text: bytes | None) -> tuple[FlowLimits, str]:
    """Return limits and kind from the text that scripts read; no limits for the text of another program."""
    tokens = _tokens(text)
    values = {item.name: read_token(tokens[item.name]) for item in fields(FlowLimits) if item.name in tokens}
    whole: dict[str, Any] = {
        name: value if value is None or name.endswith("_ms") else int(value) for name, value in values.items()
    }
    return FlowLimits(**whole), tokens.get("kind", "")


def _tokens(text: bytes | None) -> dict[str, str]:
    tokens = id_text(text).split() if text else []
    return dict(zip(_NOT_SET, tokens, strict=True)) if len(tokens) == len(_NOT_SET) else {}
