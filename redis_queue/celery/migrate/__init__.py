"""Move delayed tasks between broker and store, when the extension is put into an app or taken out of it."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Takes the number of finished tasks and of all tasks."""
