"""Loggers that escape values, which could forge log lines; texts without control characters, or likely secrets."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Mapping
from typing import Any, Final

HIDDEN: Final = "***"
"""What stands in place of a secret."""

_KEYWORD = r"passw(?:or)?d|passphrase|secret|token|api[_-]?key|private[_-]?key|authorization|cookie|credential"
_QUOTE = r"""\\{0,8}["']"""
# Each part is bounded or runs to the end of the text, so that no text makes the search slow.
_SECRET = re.compile(
    rf"""(?P<name>(?:{_KEYWORD})[\w.-]{{0,60}}(?:{_QUOTE})?\s{{0,8}}[:=]\s{{0,8}})"""
    r"""(?P<value>[bu]?"(?:[^"\\]|\\.)*(?:"|$)|[bu]?'(?:[^'\\]|\\.)*(?:'|$)|\[[^\]]*(?:\]|$)"""
    r"""|(?:(?:Bearer|Basic)\s{1,8})?(?:[^\s,;&)}\]]|[,;)}\]](?=\w))+)""",
    re.IGNORECASE | re.DOTALL,
)
# A password may have any character, also a slash or an at sign.
_AFTER_SLASHES = re.compile(r"(?<=//)(?:(?!://)\S)+")
_BEARER = re.compile(r"\b(Bearer|Basic)\s{1,8}[\w.~+/-]{6,}=*", re.IGNORECASE)


def logger_of(name: str) -> logging.Logger:
    """Return the logger *name*; values in its records are on one line, without control characters."""
    found = logging.getLogger(name)
    found.addFilter(_one_line)
    return found


class OutageLog:
    """Log one line when an outage begins, not one for each attempt, and one when it ends. Safe for threads."""

    def __init__(self, logger: logging.Logger, began: str, ended: str, *, action: str) -> None:
        self._logger = logger
        self._began = began
        self._ended = ended
        self._action = action
        self._kind: type[BaseException] | None = None

    @property
    def ongoing(self) -> bool:
        """Whether the last attempt failed."""
        return self._kind is not None

    def note(self, error: BaseException, *, retry_in: float) -> None:
        """Record that an attempt failed. An error of another class is logged as well."""
        before, self._kind = self._kind, type(error)
        if before is not self._kind:
            extra = {"action": self._action, "retry_in": round(retry_in, 2)}
            self._logger.warning("%s: %s; trying again until it works", self._began, error, extra=extra)

    def end(self) -> None:
        """Record that an attempt succeeded."""
        before, self._kind = self._kind, None
        if before is not None:
            self._logger.warning(self._ended, extra={"action": f"{self._action}_over"})


def escape(text: str, *, keep: str = "") -> str:
    """Return *text* with line breaks, control characters, and characters that reverse or hide text escaped.

    Characters in *keep* stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text)


def hide_secrets(text: str) -> str:
    """Return *text* with :data:`HIDDEN` in place of likely secrets. Best effort.

    These are values behind names such as ``password`` or ``token``, bearer tokens, and user and password of each URL.
    All that stores or shows a text that others wrote calls it: where the text is written, if it is stored.
    """
    text = _AFTER_SLASHES.sub(_without_user, text)
    text = _SECRET.sub(lambda found: f"{found['name']}{HIDDEN}", text)
    return _BEARER.sub(rf"\1 {HIDDEN}", text)


def _without_user(found: re.Match[str]) -> str:
    user, at, rest = found[0].rpartition("@")
    is_path = "/" in user and ":" not in user
    return found[0] if not at or is_path else f"{HIDDEN}@{rest}"


def _one_line(record: logging.LogRecord) -> bool:
    """Escape the values in *record*; a traceback keeps its lines."""
    if isinstance(record.args, Mapping):
        record.args = {name: _harmless(value) for name, value in record.args.items()}
    elif record.args:
        record.args = tuple(map(_harmless, record.args))
    record.msg = _harmless(record.msg)
    if isinstance(record.exc_info, tuple) and record.exc_info[1] is not None:
        record.exc_text = _traceback(record.exc_info[1])
    return True


def _harmless(value: Any) -> Any:
    """Return *value*, or its escaped text if that differs."""
    if isinstance(value, (int, float)):
        return value
    text = _text(value)
    safe = escape(text)
    return value if safe == text else safe


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - str() of a foreign exception may fail; logging reports it
        return ""


def _traceback(error: BaseException) -> str:
    """Return the traceback of *error*; each message, also of its causes, is on one line."""
    text = "".join(traceback.format_exception(error)).rstrip("\n")
    for part in _chain(error):
        message = _text(part)
        if not message.isprintable():
            text = text.replace(message, escape(message))
    return text


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is not None and all(one is not known for known in found):
            found.append(one)
            left += [one.__cause__, one.__context__]
    return found
