"""Renewer and SharedTime: renewing leases in Redis, and the memory shared by keeper and worker."""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest
import redis

from redis_queue.errors import StoreUnavailableError, WrongTypeError
from redis_queue.keeper.protocol import RenewalTime, SharedTime
from redis_queue.keeper.renewal import TAGS, LeaseIndex, Renewer
from tests.support.ports import free_port
from tests.support.wait import wait_until

INDEX = "unacked_index"
ENDS = "lease_ends"


@pytest.fixture
def board() -> Iterator[SharedTime]:
    with tempfile.TemporaryFile() as file:
        yield SharedTime(file.fileno())


def renewer(client: redis.Redis, lease: float = 60.0, signature: int = 7) -> Renewer:
    """Return the renewer of a worker with leases of so many seconds."""
    return Renewer(client, LeaseIndex(INDEX.encode(), ENDS.encode(), lease, signature))


def now_of(client: redis.Redis) -> float:
    seconds, microseconds = client.time()
    return float(seconds) + float(microseconds) / 1e6


class TestRenewer:
    def test_renews_each_lease_with_the_time_of_the_server(self, client: redis.Redis) -> None:
        client.zadd(INDEX, {"a": 1000.0, "b": 2000.0, "other": 3000.0})
        found = renewer(client).renew({"a": 1000.0, "b": 2000.4})
        assert found.lost == []
        assert 0 <= found.score - now_of(client) + 5 <= 6
        assert client.zscore(INDEX, "a") == client.zscore(INDEX, "b") == found.score
        ends = [client.zscore(ENDS, tag) for tag in ("a", "b", "other")]
        assert ends == [ends[0], ends[0], None]
        assert 59 <= (ends[0] or 0) - now_of(client) + 0.5 <= 60.5
        assert client.zscore(INDEX, "other") == 3000.0

    @pytest.mark.parametrize("since", [998.9, 1001.1, 0.0, 5000.0])
    def test_does_not_touch_a_lease_renewed_by_another_worker(self, client: redis.Redis, since: float) -> None:
        client.zadd(INDEX, {"theirs": 1000.0})
        assert renewer(client).renew({"theirs": since}).lost == ["theirs"]
        assert client.zscore(INDEX, "theirs") == 1000.0

    @pytest.mark.parametrize("signature", [1, 7, 500_000, 999_999])
    def test_recognizes_its_own_renewal_after_a_lost_answer(self, client: redis.Redis, signature: int) -> None:
        client.zadd(INDEX, {"a": 1000.0})
        keeps = renewer(client, signature=signature)
        keeps.renew({"a": 1000.0})
        assert keeps.renew({"a": 1000.0}).lost == []
        assert renewer(client, signature=signature + 1).renew({"a": 1000.0}).lost == ["a"]

    def test_does_not_restore_a_settled_message(self, client: redis.Redis) -> None:
        assert renewer(client).renew({"settled": time.time()}).lost == ["settled"]
        assert not client.exists(INDEX)

    def test_renews_again_with_the_returned_score(self, client: redis.Redis) -> None:
        client.zadd(INDEX, {"a": 1000.0})
        keeps = renewer(client)
        first = keeps.renew({"a": 1000.0})
        assert keeps.renew({"a": first.score}).lost == []

    def test_renews_many_leases_in_chunks(self, client: redis.Redis) -> None:
        held = {f"tag-{number}": 1000.0 for number in range(2 * TAGS + 5)}
        client.zadd(INDEX, held)
        found = renewer(client).renew({**held, "gone": 1.0})
        assert found.lost == ["gone"]
        assert client.zcount(INDEX, 0, 1000) == 0

    def test_keys_of_another_type_raise_a_clear_error(self, client: redis.Redis) -> None:
        client.set(INDEX, "text")
        with pytest.raises(WrongTypeError, match="unacked_index is a string"):
            renewer(client).renew({"a": 1.0})
        assert not client.exists(ENDS)

    def test_an_unreachable_server_raises_a_clear_error(self) -> None:
        with redis.Redis(port=free_port()) as nowhere, pytest.raises(StoreUnavailableError):
            renewer(nowhere).renew({"a": 1.0})


def test_a_keeper_ends_with_its_worker() -> None:
    start = (
        "import os, subprocess, sys; print(subprocess.Popen([*sys.argv[1:], str(os.getpid()), '0']).pid, flush=True)"
    )
    command = [sys.executable, "-c", f"{start}; sys.stdin.read()", sys.executable, "-m", "redis_queue.keeper"]
    # This end of the pipe stays open, as in a child of the worker.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout
        keeper = psutil.Process(int(worker.stdout.readline()))
        worker.kill()
        worker.wait()
        try:
            wait_until(lambda: not keeper.is_running(), description="the keeper to end")
        finally:
            with suppress(psutil.NoSuchProcess):
                keeper.kill()


class TestBoard:
    def test_is_empty_at_first(self, board: SharedTime) -> None:
        assert board.read() == RenewalTime(0.0, 0.0)

    def test_shows_the_last_renewal(self, board: SharedTime) -> None:
        for number in range(3):
            board.write(RenewalTime(number + 0.5, number * 1e9))
        assert board.read() == RenewalTime(2.5, 2e9)

    def test_shows_the_last_complete_renewal_after_a_crash_during_a_write(self, board: SharedTime) -> None:
        board.write(RenewalTime(1.5, 1700.25))
        assert board.read() == (1.5, 1700.25)
        board._memory[0:16] = struct.pack("<Qd", 2, 2.5)
        assert board.read() == (1.5, 1700.25)
        board.write(RenewalTime(3.5, 1703.25))
        assert board.read() == (3.5, 1703.25)

    def test_shows_nothing_after_a_crash_during_the_first_write(self, board: SharedTime) -> None:
        board._memory[0:8] = struct.pack("<Q", 1)
        assert board.read() == (0, 0)

    def test_never_shows_half_of_a_renewal(self, board: SharedTime) -> None:
        done = threading.Event()

        def write() -> None:
            for number in range(20_000):
                board.write(RenewalTime(float(number), float(number)))
            done.set()

        thread = threading.Thread(target=write)
        thread.start()
        while not done.is_set():
            at, score = board.read()
            assert at == score
        thread.join()
