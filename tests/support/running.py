"""Base class of servers that `with` starts and stops."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class Running:
    """Calls `start()` on entering `with` and `stop()` on leaving it."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start; return when it is ready."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop, in any state."""
        raise NotImplementedError
