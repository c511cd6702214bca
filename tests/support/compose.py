"""The services of a compose file as processes of this machine, with the commands and the environment of the file.

A process stands for a container: its working directory is its own, and a free port of 127.0.0.1 stands for its port. So
names and addresses of servers are replaced wherever the file has them: `redis-1:6379` by `127.0.0.1:12345`, `redis-1
6379` by `127.0.0.1 12345`. Images are replaced by the programs of this machine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from redis_queue.testing.server import ServerProcess

from .binaries import default_kind, server_binary
from .parts import require
from .paths import ROOT
from .ports import HOST, free_port
from .servers import Running
from .services import START_TIMEOUT, rabbitmq_answers, rabbitmq_environment

BASE: Final = "install"
"""The service that installs packages, which the environment of the tests has; services of the app extend it."""

REDIS_SERVER: Final = '#!/bin/sh\nexec {server} "$@" --port "$PORT" --bind {host}\n'
REDIS_CLI: Final = '#!/bin/sh\nexec {client} -h {host} -p "$PORT" "$@"\n'

Spec = dict[str, Any]


def services(file: Path) -> dict[str, Spec]:
    """Return the services of a compose file; what they extend is merged into them."""
    return {name: _extended(file, spec) for name, spec in yaml.safe_load(file.read_text())["services"].items()}


def _extended(file: Path, spec: Spec) -> Spec:
    own = dict(spec)
    if (source := own.pop("extends", None)) is None:
        return own
    base = services((file.parent / source["file"]).resolve())[source["service"]]
    merged = {**base, **own, "base": source["service"]}
    for key in ("environment", "healthcheck", "depends_on"):
        if key in base or key in own:
            merged[key] = {**base.get(key, {}), **own.get(key, {})}
    return merged


class Composition(Running):
    """The services of *file*; *environment* extends that of the services of the app."""

    def __init__(self, file: Path, **environment: str) -> None:
        self._file = file
        self._environment = environment
        self._configs: Spec = yaml.safe_load(file.read_text()).get("configs", {})
        self._specs = {name: spec for name, spec in services(file).items() if name != BASE}
        self._ports: dict[str, int] = {}
        self._folder = Path()
        self._processes: dict[str, ServerProcess] = {}
        self._earlier: dict[str, str] = {}

    def start(self) -> None:
        """Start all services, each after those on which it depends; return when all are ready."""
        self._folder = Path(tempfile.mkdtemp(prefix="compose-"))
        self._ports = {name: free_port() for name in self._specs}
        try:
            self._make_programs()
            for name in self._in_order():
                (self._folder / name).mkdir()
                if self._specs[name].get("healthcheck", {}).get("disable"):
                    self._run_once(name)
                else:
                    self.restart(name)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kill all processes and remove their directories."""
        for name in reversed(list(self._processes)):
            self.kill(name)
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill(self, name: str) -> None:
        """Kill a service by SIGKILL, with its children; it keeps its directory and its port."""
        self._processes.pop(name).kill()
        self._earlier[name] = self._earlier.get(name, "") + self._log(name)

    def restart(self, name: str) -> None:
        """Start a service that does not run; return when it is ready."""
        directory = self._folder / name
        timeout = START_TIMEOUT if self._is_rabbitmq(name) else 40.0
        environment = {**os.environ, **self.environment(name)}
        self._processes[name] = ServerProcess(
            self._command(name), directory, partial(self._is_ready, name), timeout=timeout, env=environment
        )

    def output(self, name: str) -> str:
        """Return what a service has written since the start, also before restarts."""
        return self._earlier.get(name, "") + (self._log(name) if name in self._processes else "")

    def port(self, name: str) -> int:
        """Return the port that stands for those of a service."""
        return self._ports[name]

    @property
    def running(self) -> list[str]:
        """The services that were started and not killed since."""
        return list(self._processes)

    @property
    def apps(self) -> list[str]:
        return [name for name in self._specs if self._is_app(name)]

    def environment(self, name: str) -> dict[str, str]:
        given = {key: self._local(str(value)) for key, value in self._specs[name].get("environment", {}).items()}
        if self._is_app(name):
            # Those of the image say where it has its packages.
            foreign = ("HOME", "PYTHONDONTWRITEBYTECODE", "REDIS_URL")
            kept = {key: value for key, value in given.items() if key not in foreign}
            return {**kept, "PYTHONPATH": str(ROOT), **self._environment}
        programs = {"PATH": f"{self._folder / 'bin'}:{os.environ['PATH']}", "PORT": str(self._ports[name])}
        if self._is_rabbitmq(name):
            programs |= self._rabbitmq_environment(name, given["RABBITMQ_ERLANG_COOKIE"])
        return {**given, **programs}

    def _in_order(self) -> Iterator[str]:
        """Yield the names of the services, each after those on which it depends."""
        ready = {BASE}
        while left := [name for name in self._specs if name not in ready]:
            found = next(name for name in left if set(self._specs[name].get("depends_on", {})) <= ready)
            ready.add(found)
            yield found

    def _is_app(self, name: str) -> bool:
        return self._specs[name].get("base") == BASE

    def _is_rabbitmq(self, name: str) -> bool:
        return str(self._specs[name]["image"]).startswith("rabbitmq:")

    def _command(self, name: str) -> list[str]:
        if self._is_rabbitmq(name):
            return [require("rabbitmq-server")]  # that of the image
        command = self._words(self._specs[name]["command"])
        return [sys.executable, *command[1:]] if self._is_app(name) else command

    def _words(self, words: list[str]) -> list[str]:
        """Return the words of a command for this machine."""
        return self._local("\v".join(words)).split("\v")

    def _local(self, text: str) -> str:
        """Return *text* with the places of this machine."""
        names = {name: name for name in self._specs if not self._is_app(name)}
        for name, spec in self._specs.items():
            if address := spec.get("networks", {}).get("default", {}).get("ipv4_address"):
                names[address] = name
        one = "|".join(map(re.escape, names))

        def local(found: re.Match[str]) -> str:
            if found["node"]:
                return self._node(found["node"])
            return f"{HOST}{found['between']}{self._ports[names[found['place']]]}" if found["place"] else HOST

        pattern = rf"rabbit@(?P<node>{one})\b|\b(?P<place>{one})(?P<between>:|\s-p\s|\s)\d+\b|\b({one})\b"
        return re.sub(pattern, local, text).replace("$$", "$")

    def _node(self, name: str) -> str:
        # All nodes of this machine have one epmd.
        return f"{name}-{self._ports[name]}@localhost"

    def _make_programs(self) -> None:
        folder = self._folder / "bin"
        folder.mkdir()
        require("redis-server")
        places = {"server": server_binary(default_kind()), "client": shutil.which("redis-cli"), "host": HOST}
        for name, text in (("redis-server", REDIS_SERVER), ("redis-cli", REDIS_CLI)):
            (folder / name).write_text(text.format(**places))
            (folder / name).chmod(0o755)

    def _rabbitmq_environment(self, name: str, cookie: str) -> Mapping[str, str]:
        directory = self._folder / name
        files = {
            ".erlang.cookie": cookie,
            "environment": "",
            "rabbitmq.conf": f"listeners.tcp.local = {HOST}:{self._ports[name]}\n",
        }
        for config in self._specs[name]["configs"]:
            files["rabbitmq.conf"] += self._local(self._configs[config["source"]]["content"])
        for file, text in files.items():
            (directory / file).write_text(text)
            (directory / file).chmod(0o600)
        return rabbitmq_environment(directory, self._node(name), self._ports[name] + 10_000)

    def _run_once(self, name: str) -> None:
        environment = {**os.environ, **self.environment(name)}
        done = subprocess.run(
            self._command(name), cwd=self._folder / name, env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"

    def _is_ready(self, name: str) -> bool:
        if self._is_app(name):
            return " ready." in self._log(name)
        if self._is_rabbitmq(name):
            # The check of the image starts an Erlang of its own, for seconds.
            return rabbitmq_answers(f"amqp://shop:shop@{HOST}:{self._ports[name]}//")
        _, *check = self._words(self._specs[name]["healthcheck"]["test"])
        environment = {**os.environ, **self.environment(name)}
        return subprocess.run(check, env=environment, capture_output=True, timeout=20).returncode == 0

    def _log(self, name: str) -> str:
        return (self._folder / name / "server.log").read_text(errors="replace")
