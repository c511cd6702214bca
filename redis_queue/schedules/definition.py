"""Definition: what a user said about a schedule, as plain data, and the text that it is stored as."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal, get_args

from redis_queue.basics.options import did_you_mean
from redis_queue.basics.times import END_OF_CALENDAR_MS, MAX_DELAY_MS
from redis_queue.errors import BodyError, InvalidValueError, quoted
from redis_queue.store.chunks import check_limit
from redis_queue.store.codec import JSON, read_document
from redis_queue.store.keys import check_name

Missed = Literal["latest", "all", "skip"]
Overlap = Literal["allow", "skip", "queue", "cancel"]
Dst = Literal["wall", "celery"]

MAX_BYTES: Final = 32 * 1024
"""Maximum size of a definition: a page of them is read at once."""

MAX_TASK: Final = 500
MAX_RUNS: Final = 1_000_000_000
MAX_FAILURES: Final = 1000

_NUMBERS: Final = {
    "window": MAX_DELAY_MS,
    "overlap_timeout": MAX_DELAY_MS,
    "jitter": MAX_DELAY_MS,
    "expires": MAX_DELAY_MS,
    "until": END_OF_CALENDAR_MS,
    "max_runs": MAX_RUNS,
    "pause_after_failures": MAX_FAILURES,
}
"""Fields with whole numbers, and the largest one."""

_ITEMS: Final = {"rules": "rules, each a mapping", "exclude": "dates, each a text"}

_VOLATILE: Final = ("tzdata", "version")
"""Fields that do not make a definition another one."""


@dataclass(frozen=True)
class Definition:
    """What a schedule sends and when; raises InvalidValueError for invalid values. Times and durations are in ms.

    *rules* and *exclude* are the data of :class:`redis_queue.celery.schedules.rules.Calendar`. *app* declared it; if it
    is *static*, in its ``beat_schedule``. *expires* is a duration after the sending, or "next": the next due time.
    """

    name: str
    task: str
    rules: Sequence[Mapping[str, Any]]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    timezone: str = "UTC"
    exclude: Sequence[str] = ()
    dst: Dst = "wall"
    missed: Missed = "latest"
    window: int | None = None
    overlap: Overlap = "allow"
    overlap_timeout: int = 3_600_000
    jitter: int = 0
    expires: int | Literal["next"] | None = None
    until: int | None = None
    max_runs: int | None = None
    pause_after_failures: int | None = None
    app: str = ""
    static: bool = False
    version: str = ""
    tzdata: str = ""

    def __post_init__(self) -> None:
        check_name(self.name, what="schedule")
        if not isinstance(self.task, str) or not self.task.isprintable() or not 0 < len(self.task) <= MAX_TASK:
            raise InvalidValueError(f"task={self.task!r}: must be the name of a task, up to {MAX_TASK} characters")
        self._check_choices()
        self._check_numbers()
        for name in ("rules", "args", "exclude"):
            if not isinstance(value := getattr(self, name), list | tuple):
                raise InvalidValueError(f"{name}={value!r}: must be a list")
        for name, kind in (("rules", Mapping), ("exclude", str)):
            if not all(isinstance(item, kind) for item in getattr(self, name)):
                raise InvalidValueError(f"{name}={quoted(getattr(self, name))}: must be a list of {_ITEMS[name]}")
        for name in ("kwargs", "options"):
            value = getattr(self, name)
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise InvalidValueError(f"{name}={value!r}: must be a mapping with string names")

    def _check_choices(self) -> None:
        for name, kind in (("missed", Missed), ("overlap", Overlap), ("dst", Dst)):
            if (value := getattr(self, name)) not in get_args(kind):
                raise InvalidValueError(f"{name}={value!r}: must be one of {', '.join(get_args(kind))}")
        texts = [self.timezone, self.app, self.version, self.tzdata]
        if not isinstance(self.static, bool) or not all(isinstance(text, str) for text in texts):
            raise InvalidValueError("static must be a bool; timezone, app, version and tzdata must be texts")

    def _check_numbers(self) -> None:
        for name, most in _NUMBERS.items():
            value = getattr(self, name)
            if value is not None and (name, value) != ("expires", "next"):
                check_limit(value, most, name=name, least=name not in ("jitter", "window"))

    def text(self) -> str:
        """Return it as JSON. Raises BodyError for values that JSON lacks, or if it is too large."""
        try:
            found = JSON.dumps({"v": 1, **asdict(self)}).decode()
        except (TypeError, ValueError, RecursionError) as error:
            raise BodyError(f"schedule {self.name!r}: cannot be stored as JSON: {error}") from error
        if len(found) > MAX_BYTES:
            raise BodyError(f"schedule {self.name!r} of {len(found)} bytes: must be at most {MAX_BYTES}")
        return found

    @classmethod
    def read(cls, text: bytes | str) -> Definition:
        """Return the definition in a stored *text*, which may be hostile. Raises InvalidValueError.

        Its rules are not checked.
        """
        if len(text) > 2 * MAX_BYTES:
            raise InvalidValueError(f"a definition of {len(text)} bytes: must be at most {MAX_BYTES}")
        try:
            found = read_document(text)
        except ValueError as error:
            raise InvalidValueError(f"a definition that is not JSON: {error}") from error
        if not isinstance(found, dict) or found.pop("v", None) != 1:
            raise InvalidValueError("a definition of a newer version, or of another program")
        return from_mapping(found)

    def means_the_same(self, other: Definition) -> bool:
        """Return whether *other* sends the same at the same times."""
        return self._meaning() == other._meaning()

    def _meaning(self) -> str:
        known = {name: value for name, value in asdict(self).items() if name not in _VOLATILE}
        return json.dumps(known, sort_keys=True)

    @property
    def every(self) -> int:
        """The interval in ms if that is the only rule, and nothing is excluded; else 0."""
        if len(self.rules) != 1 or self.exclude or set(self.rules[0]) != {"every"}:
            return 0
        found = self.rules[0]["every"]
        return found if isinstance(found, int) and found > 0 else 0

    def fire_ms(self, due: int) -> int:
        """Return when the run of *due* is sent: later by the jitter, which every dispatcher computes alike."""
        if not self.jitter:
            return due
        found = hashlib.sha256(f"{self.name}\0{due}".encode(errors="surrogatepass")).digest()
        return due + int.from_bytes(found[:8], "big") % (self.jitter + 1)


def from_mapping(found: Mapping[str, Any]) -> Definition:
    """Return the definition with the fields in *found*. Raises InvalidValueError."""
    known = [item.name for item in fields(Definition)]
    for name in found:
        if name not in known:
            raise InvalidValueError(f"unknown field {name!r} of a schedule: {did_you_mean(str(name), known)}")
    missing = [name for name in known[:3] if name not in found]
    if missing:
        raise InvalidValueError(f"a schedule without {' and '.join(missing)}")
    return Definition(**found)
