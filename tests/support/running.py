"""What is started and stopped by `with`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class Running:
    """Starts at the beginning of `with` and stops at its end."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start; return when it works."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop, whatever state it is in."""
        raise NotImplementedError
