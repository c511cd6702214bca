"""OwnServer: a Redis or Valkey server that only this process uses."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from redis_queue.testing.binaries import find_server
from redis_queue.testing.server_process import ServerProcess, server_options, socket_of, start_redis

if TYPE_CHECKING:
    from typing_extensions import Self


class OwnServer:
    """A server on a unix socket in a temporary directory, for a ``with`` block, or from start to stop.

    It saves nothing. It is gone with its directory when it is stopped or when this process dies, even by SIGKILL.
    *options* are further options of the server, such as ``"--port", "6390"``. Raises ServerNotFoundError without a
    server binary, ServerStartError if the server does not start.
    """

    def __init__(self, *options: str) -> None:
        self._binary = find_server()
        self._options = options
        self._directory = Path()
        self._process: ServerProcess | None = None

    @property
    def url(self) -> str:
        """The URL of its database."""
        return f"unix://{self.socket}?db=0"

    @property
    def socket(self) -> Path:
        """The unix socket."""
        return socket_of(self._directory)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server; return when it answers."""
        self._directory = Path(tempfile.mkdtemp(prefix="redis-queue-"))
        options = [word for option in server_options(self._directory).items() for word in option]
        try:
            self._process = start_redis(self._binary, self._directory, [*options, *self._options])
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server and remove its directory; no-op if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
        if self._directory != Path():
            shutil.rmtree(self._directory, ignore_errors=True)
