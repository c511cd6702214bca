"""The cluster of nodes of pytest-celery: a Redis and a worker of the reference application.

The other tests use the in-process fixtures of celery.contrib.pytest, whose celery_worker pytest-celery would shadow.
Therefore that plugin is not loaded; its fixtures are imported here, for this folder only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import docker.errors
import pytest
import pytest_docker_tools.wrappers.container  # type: ignore[import-untyped]
from pytest_celery import (  # type: ignore[import-untyped]
    CeleryTestBroker,
    CeleryTestSetup,
    CeleryTestWorker,
    CeleryWorkerCluster,
    CeleryWorkerContainer,
    RedisContainer,
    celery_broker_cluster,
    celery_broker_cluster_config,
    celery_redis_broker,
    celery_setup,
    celery_setup_app,
    celery_setup_cls,
    celery_setup_config,
    celery_setup_name,
    celery_setup_worker,
    celery_worker_cluster_config,
    default_pytest_celery_network,
    default_redis_broker,
    default_redis_broker_env,
    default_redis_broker_image,
    default_redis_broker_ports,
    default_worker_app,
    default_worker_cls,
    default_worker_command,
    default_worker_env,
)
from pytest_docker_tools import container, fxtr

from tests.celery.cluster.containers import ProcessClient
from tests.celery.cluster.image import build_image

SECONDS_TO_ANSWER = 3

__all__ = [
    "celery_broker_cluster",
    "celery_broker_cluster_config",
    "celery_redis_broker",
    "celery_setup",
    "celery_setup_app",
    "celery_setup_cls",
    "celery_setup_config",
    "celery_setup_name",
    "celery_setup_worker",
    "celery_worker_cluster_config",
    "default_pytest_celery_network",
    "default_redis_broker",
    "default_redis_broker_env",
    "default_redis_broker_image",
    "default_redis_broker_ports",
    "default_worker_app",
    "default_worker_cls",
    "default_worker_command",
    "default_worker_env",
]


class DurableRedis(RedisContainer):  # type: ignore[misc]
    """A Redis that keeps its data after a kill."""

    @classmethod
    def command(cls, *args: str, **kwargs: Any) -> list[str]:
        """Write every change to the append-only file."""
        command: list[str] = super().command(*args, **kwargs)
        command[command.index("--appendonly") + 1] = "yes"
        return [*command, "--appendfsync", "always"]


class ReferenceWorker(CeleryWorkerContainer):  # type: ignore[misc]
    @classmethod
    def command(cls, *args: str, **_: Any) -> list[str]:
        quick = ("--concurrency", "2", "--without-mingle", "--without-gossip")
        return ["celery", "-A", "tasks", "worker", "--beat", "--loglevel", "INFO", *quick, *args]

    @classmethod
    def initial_env(cls, celery_worker_cluster_config: dict[str, Any], *_: Any) -> dict[str, str]:
        """Use the Redis node as broker and store."""
        (url,) = celery_worker_cluster_config["celery_broker_cluster_config"]["urls"]
        return {"REDIS_URL": url, "CELERY_BROKER_URL": url, "CELERY_RESULT_BACKEND": "", "REDIS_QUEUE_PREFIX": "shop"}


def _engine() -> docker.DockerClient | None:
    # Checked first: the docker client leaves a socket open if no engine listens.
    if "DOCKER_HOST" not in os.environ and not Path("/var/run/docker.sock").exists():
        return None
    try:
        client = docker.from_env(timeout=SECONDS_TO_ANSWER)
        client.ping()
    except docker.errors.DockerException:
        return None
    return client


ENGINE = _engine()


@pytest.fixture(scope="session", params=["processes", *(["containers"] if ENGINE else [])])
def docker_client(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client for processes of this host, or for containers if it has a Docker engine."""
    if request.param == "containers":
        yield ENGINE
        return
    with pytest.MonkeyPatch.context() as patch:
        # The nodes listen on the loopback of this host, whether or not the tests run in a container.
        patch.setattr(pytest_docker_tools.wrappers.container, "tests_inside_container", lambda: False)
        yield ProcessClient()


@pytest.fixture(scope="session")
def worker_image(docker_client: Any) -> str:
    """The image of the worker's node; processes need none."""
    return "tasks" if isinstance(docker_client, ProcessClient) else build_image(docker_client)


@pytest.fixture
def default_redis_broker_cls() -> type[RedisContainer]:
    return DurableRedis


@pytest.fixture
def default_redis_broker_command(default_redis_broker_cls: type[RedisContainer]) -> list[str]:
    command: list[str] = default_redis_broker_cls.command()
    return command


@pytest.fixture
def celery_broker(celery_redis_broker: CeleryTestBroker) -> CeleryTestBroker:
    """One broker, which is also the store."""
    return celery_redis_broker


@pytest.fixture
def celery_backend_cluster() -> None:
    """No backend: these tests read no results."""


@pytest.fixture
def celery_backend_cluster_config() -> None:
    """No backend: these tests read no results."""


@pytest.fixture
def default_worker_container_cls() -> type[CeleryWorkerContainer]:
    return ReferenceWorker


default_worker_container = container(
    image="{worker_image}",
    environment=fxtr("default_worker_env"),
    network="{default_pytest_celery_network.name}",
    wrapper_class=ReferenceWorker,
    timeout=60,
    command=fxtr("default_worker_command"),
)


@pytest.fixture
def celery_worker(celery_setup_worker: CeleryTestWorker) -> CeleryTestWorker:
    return celery_setup_worker


@pytest.fixture
def celery_worker_cluster(celery_worker: CeleryTestWorker) -> Iterator[CeleryWorkerCluster]:
    cluster = CeleryWorkerCluster(celery_worker)
    yield cluster
    cluster.teardown()


@pytest.fixture
def setup(celery_setup: CeleryTestSetup) -> CeleryTestSetup:
    """A running Redis and a ready worker."""
    return celery_setup
