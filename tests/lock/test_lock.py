"""A lock has one holder at a time, its lease ends by itself, and every call can be repeated."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import freezegun
import pytest
import redis

from redis_queue import (
    InvalidDelayError,
    InvalidNameError,
    LeaseLostError,
    Lock,
    LockTakenError,
    StoreError,
    StoreUnavailableError,
    current_lock,
)
from redis_queue.lock.lock import HeldLock, held_here
from redis_queue.store.keys import LockKeys
from redis_queue.store.script_files import load
from tests.support.clock import START, Clock
from tests.support.proxy import FaultProxy
from tests.support.wait import wait_until


@pytest.fixture
def lock(client: redis.Redis, clock: Clock) -> Lock:
    """A lock with a lease of a minute, too long for a heartbeat during a test."""
    return Lock("customer:1", client, clock=clock)


def acquired(held: HeldLock | None) -> HeldLock:
    """Return *held*; fail if the lock was not acquired."""
    assert held is not None
    return held


def call(lock: Lock, script: str, **arguments: Any) -> Any:
    return getattr(lock, f"_{script}")(**arguments)


class TestHolding:
    def test_a_holder_whose_machine_slept_knows_that_it_may_be_lost(
        self, lock: Lock, sleep: Callable[[float], None]
    ) -> None:
        with lock.hold() as held:
            assert not held.lost
            sleep(90)
            assert held.lost

    def test_one_holds_it_until_the_release(self, lock: Lock) -> None:
        with lock.hold() as held:
            assert current_lock() is held
            assert held_here(lock)
            assert lock.acquire() is None
            with pytest.raises(LockTakenError, match="'customer:1'"), lock.hold():
                pass
            held.check()
            assert not held.lost
        assert current_lock() is None
        assert held.release()
        with lock.hold() as again:
            assert again.fence > held.fence

    def test_a_lock_released_in_another_thread_is_not_held_here(self, lock: Lock) -> None:
        held = acquired(lock.acquire())
        assert (current_lock(), held_here(lock)) == (held, True)
        other = threading.Thread(target=held.release)
        other.start()
        other.join()
        assert (current_lock(), held_here(lock)) == (None, False)

    def test_an_error_releases_it(self, lock: Lock) -> None:
        with pytest.raises(ZeroDivisionError), lock.hold():
            raise ZeroDivisionError
        assert acquired(lock.acquire()).release()

    def test_locks_with_other_names_or_prefixes_are_independent(self, lock: Lock, client: redis.Redis) -> None:
        with lock.hold(), Lock("customer:2", client).hold(), Lock("customer:1", client, prefix="other").hold():
            pass

    def test_threads_take_turns(self, client: redis.Redis) -> None:
        inside: list[int] = []
        fences: list[int] = []

        def work(_: int) -> None:
            for _ in range(5):
                with Lock("turns", client).hold(wait=30) as held:
                    inside.append(1)
                    assert len(inside) == 1
                    fences.append(held.fence)
                    client.ping()
                    inside.pop()

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(work, range(4)))
        assert len(fences) == 20
        assert all(one < two for one, two in itertools.pairwise(fences))

    def test_a_blocking_acquire_gets_it(self, client: redis.Redis) -> None:
        held = acquired(Lock("wait", client).acquire())
        found: list[HeldLock | None] = []
        thread = threading.Thread(target=lambda: found.append(Lock("wait", client).acquire(wait=30)))
        thread.start()
        held.release()
        thread.join()
        assert acquired(found[0]).release()

    def test_a_wait_ends_although_the_clock_of_the_process_stands_still(self, lock: Lock) -> None:
        with freezegun.freeze_time("2031-05-01"), lock.hold():
            assert lock.acquire(wait=0.05) is None


class TestLease:
    def test_it_ends_by_itself_and_the_next_holder_has_a_greater_fence(self, lock: Lock, clock: Clock) -> None:
        first = acquired(lock.acquire())
        clock.now += 59_999
        assert lock.acquire() is None
        clock.now += 1
        second = acquired(lock.acquire())
        assert second.fence > first.fence
        with pytest.raises(LeaseLostError):
            first.check()
        assert not first.release()
        second.check()
        assert second.release()

    def test_an_ended_lease_can_be_extended_until_another_acquire(self, lock: Lock, clock: Clock) -> None:
        held = acquired(lock.acquire())
        clock.now += 90_000
        assert lock.extend([held], 60_000) == [True]
        assert lock.acquire() is None
        assert held.release()

    def test_a_lease_is_never_shortened(self, lock: Lock, clock: Clock) -> None:
        held = acquired(lock.acquire())
        assert lock.extend([held], 1) == [True]
        clock.now += 59_999
        assert lock.acquire() is None
        held.release()

    def test_the_heartbeat_keeps_it(self, client: redis.Redis) -> None:
        lock = Lock("kept", client, lease=0.3)
        keys = LockKeys("redis_queue", "kept")
        with lock.hold() as held:
            ends = [int(client.hget(keys.holder, "expires_at") or 0)]
            # After the end of the first lease.
            wait_until(
                lambda: int(client.hget(keys.holder, "expires_at") or 0) >= ends[0] + 600, description="extensions"
            )
            assert lock.acquire() is None
            assert not held.lost

    def test_a_lock_without_references_is_not_extended(self, client: redis.Redis) -> None:
        lock = Lock("dropped", client, lease=0.3)
        assert lock.acquire() is not None
        assert current_lock() is None
        acquired(lock.acquire(wait=5)).release()

    def test_the_heartbeat_learns_of_the_loss(self, client: redis.Redis) -> None:
        lock = Lock("lost", client, lease=0.3)
        held = acquired(lock.acquire())
        client.hset(lock.key, "token", "somebody else")
        wait_until(lambda: held.lost, description="the loss to be noticed")
        assert not held.release()

    def test_a_lock_is_lost_if_redis_is_unreachable(self, proxy: FaultProxy, through: redis.Redis) -> None:
        held = acquired(Lock("away", through, lease=0.5).acquire())
        proxy.mode = "refuse"
        proxy.cut()
        wait_until(lambda: held.lost, description="the lease to end by the local clock")
        proxy.mode = "pass"
        held.release()

    def test_fences_grow_after_a_clock_step_and_after_deletion_of_the_key(
        self, lock: Lock, clock: Clock, client: redis.Redis
    ) -> None:
        fences = []
        for moved in (0, 0, -1_800_000, 5):
            clock.now += moved
            with lock.hold() as held:
                fences.append(held.fence)
        client.delete(lock.key)
        clock.now = START + 1
        with lock.hold() as held:
            fences.append(held.fence)
        assert all(one < two for one, two in itertools.pairwise(fences))

    def test_keys_expire(self, lock: Lock, client: redis.Redis) -> None:
        keys = LockKeys("redis_queue", "customer:1")
        with lock.hold():
            assert 3_600_000 < int(client.pttl(keys.holder)) <= 3_660_000
        assert 0 < int(client.pttl(keys.holder)) <= 3_600_000


class TestRepeats:
    def test_repeated_calls_have_the_same_answer(self, lock: Lock) -> None:
        take = {"now": START, "token": "t", "lease": 60_000, "sequence": lock._calls.next_number()}
        refused = take | {"token": "other", "sequence": lock._calls.next_number()}
        acquire = lock._calls.script("lock/acquire", holder=lock.key)
        assert acquire(**take)[0] == acquire(**take)[0] > 0
        assert acquire(**refused)[0] == 0
        assert call(lock, "release", token="t") == call(lock, "release", token="t") == 1
        # Late repetitions do not acquire the lock.
        assert acquire(**refused) == [0, 0]
        with pytest.raises(StoreError, match="no effect"):
            acquire(**take)
        acquired(lock.acquire()).release()

    @pytest.mark.parametrize("operation", ["acquire", "extend", "release"])
    def test_a_lost_reply_changes_nothing(
        self, client: redis.Redis, proxy: FaultProxy, through: redis.Redis, operation: str
    ) -> None:
        lock, direct = Lock("lost", through), Lock("lost", client)
        warm = acquired(lock.acquire())
        warm.check()
        warm.release()
        proxy.drop_next_reply(matching=load(f"lock/{operation}").sha.encode())
        held = acquired(lock.acquire())
        assert direct.acquire() is None
        assert lock.extend([held], 60_000) == [True]
        assert held.release()
        assert proxy.pending_drops == 0
        assert acquired(direct.acquire()).release()

    def test_a_failed_release_leaves_the_lock_until_its_lease_ends(
        self, proxy: FaultProxy, through: redis.Redis
    ) -> None:
        lock = Lock("away", through, lease=30)
        held = acquired(lock.acquire())
        proxy.mode = "refuse"
        proxy.cut()
        assert not held.release()
        with pytest.raises(StoreUnavailableError):
            lock.acquire()


class TestBadValues:
    @pytest.mark.parametrize("lease", [0, -1, 0.05, float("nan"), float("inf"), 8 * 86400, "60", True, None])
    def test_an_invalid_lease_is_refused(self, dead: redis.Redis, lease: Any) -> None:
        with pytest.raises(InvalidDelayError, match=r"^lease="):
            Lock("x", dead, lease=lease)

    @pytest.mark.parametrize("wait", [-1, float("nan"), 2 * 86400, "1"])
    def test_an_invalid_wait_is_refused(self, dead: redis.Redis, wait: Any) -> None:
        with pytest.raises(InvalidDelayError, match=r"^wait="):
            Lock("x", dead).acquire(wait=wait)

    @pytest.mark.parametrize("name", ["", "a\n", "x" * 201, None, 7, b"x", "\ud800"])
    def test_an_invalid_name_is_refused(self, dead: redis.Redis, name: Any) -> None:
        with pytest.raises(InvalidNameError, match=r"^lock name="):
            Lock(name, dead)


@pytest.fixture
def dead() -> redis.Redis:
    """A client that fails at any call."""
    return redis.Redis(unix_socket_path="/nonexistent")
