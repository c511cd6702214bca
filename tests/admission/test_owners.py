"""Owners: which task owns a key, read in pages and freed by hand."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis

from redis_queue.admission.owners import MAX_LISTED, Owner, Owners, field_of, new_token
from redis_queue.errors import InvalidValueError, WrongTypeError
from redis_queue.store.keys import FlowKeys
from tests.support.wait import must

PREFIX = "redis_queue"
KEYS = FlowKeys(PREFIX)
MINUTE = 60_000


@pytest.fixture
def owners(client: redis.Redis) -> Owners:
    return Owners(client, PREFIX)


def own(owners: Owners, task: str, key: str = "", *, ttl_ms: int = MINUTE, task_id: str = "", sent: bool = True) -> str:
    """Let a new message own a key; return its token."""
    token = new_token()
    acquired = owners.acquire(field_of(task, key), token, task_id=task_id or f"id of {key}", ttl_ms=ttl_ms)
    assert acquired.owns
    assert not sent or owners.confirm(field_of(task, key), token)
    return token


def pass_time(client: redis.Redis, task: str, key: str = "") -> None:
    """Let the time of an owner pass."""
    assert client.zadd(KEYS.owner_ends, {field_of(task, key): 1}, xx=True, ch=True)


def write(client: redis.Redis, field: str | bytes, record: str | bytes, ends: Any = 2e12) -> None:
    """Write an owner as another program would."""
    client.hset(KEYS.owners, field, record)
    client.zadd(KEYS.owner_ends, {field if isinstance(field, bytes) else field.encode(): ends})


def keys(found: list[Owner]) -> list[tuple[str, str]]:
    return [(owner.task, owner.key) for owner in found]


class TestGet:
    def test_it_tells_task_state_and_end(self, owners: Owners, client: redis.Redis) -> None:
        before = datetime.now(timezone.utc)
        own(owners, "shop.sync", "order:7", task_id="first")
        found = must(owners.get("shop.sync", "order:7"))
        assert (found.task, found.key, found.task_id, found.state) == ("shop.sync", "order:7", "first", "delayed")
        assert before + timedelta(seconds=59) < found.until < before + timedelta(seconds=90)

    @pytest.mark.parametrize(
        ("mark", "state"), [("s", "sending"), ("d", "delayed"), ("w", "waiting"), ("r", "running")]
    )
    def test_each_state(self, mark: str, state: str, owners: Owners, client: redis.Redis) -> None:
        write(client, field_of("shop.sync", "a"), f"12ab - {mark} 1000 id")
        found = owners.get("shop.sync", "a")
        assert found == Owner("shop.sync", "a", "id", state, datetime.fromtimestamp(2e9, timezone.utc))  # type: ignore[arg-type]

    def test_a_task_without_keys_has_one(self, owners: Owners) -> None:
        assert owners.get("single") is None
        own(owners, "single", task_id="it")
        found = must(owners.get("single"))
        assert (found.key, found.task_id) == ("", "it")

    def test_nobody_owns_other_keys(self, owners: Owners) -> None:
        own(owners, "shop.sync", "order:7")
        for task, key in (("shop.sync", "order:70"), ("shop.sync", ""), ("shop.sy", "order:7"), ("other", "order:7")):
            assert owners.get(task, key) is None

    def test_not_after_its_end(self, owners: Owners, client: redis.Redis) -> None:
        own(owners, "shop.sync", "a")
        pass_time(client, "shop.sync", "a")
        assert owners.get("shop.sync", "a") is None
        assert owners.list() == []
        assert owners.count() == 0
        assert not owners.release("shop.sync", "a")

    def test_a_message_that_was_not_sent_in_time_leaves_the_key_to_the_one_before(
        self, owners: Owners, client: redis.Redis
    ) -> None:
        own(owners, "shop.sync", "a", task_id="first")
        field = field_of("shop.sync", "a")
        assert owners.acquire(field, new_token(), task_id="second", ttl_ms=MINUTE, replaces=True).replaces
        pass_time(client, "shop.sync", "a")
        found = must(owners.get("shop.sync", "a"))
        assert (found.task_id, found.state) == ("first", "delayed")
        assert found.until > datetime.now(timezone.utc)
        assert owners.release("shop.sync", "a")

    def test_apps_with_other_prefixes_have_owners_of_their_own(self, owners: Owners, client: redis.Redis) -> None:
        others = Owners(client, "another"), Owners(client, PREFIX, broker_prefix="x")
        own(owners, "shop.sync", "a")
        for other in others:
            assert (other.get("shop.sync", "a"), other.list(), other.count()) == (None, [], 0)
            assert not other.release("shop.sync", "a")
        assert owners.count() == 1


class TestList:
    def test_those_that_end_first_come_first(self, owners: Owners) -> None:
        for key, minutes in (("late", 60), ("soon", 1), ("later", 600)):
            own(owners, "shop.sync", key, ttl_ms=minutes * MINUTE)
        assert keys(owners.list()) == [("shop.sync", "soon"), ("shop.sync", "late"), ("shop.sync", "later")]
        assert keys(owners.list(limit=1)) == [("shop.sync", "soon")]

    def test_those_of_one_task(self, owners: Owners) -> None:
        for task in ("shop", "shop.sync", "shop.sync2", "my.shop.sync", "shop*", "shop?sync"):
            own(owners, task, "a")
        assert keys(owners.list("shop.sync")) == [("shop.sync", "a")]
        assert keys(owners.list("shop*")) == [("shop*", "a")]
        assert keys(owners.list("shop?sync")) == [("shop?sync", "a")]
        assert owners.list("sho") == []

    @pytest.mark.parametrize(
        ("part", "tasks"),
        [
            ("", ["mail", "shop.sync", "shop[1]", "shop\\"]),
            ("shop", ["shop.sync", "shop[1]", "shop\\"]),
            ("sync", ["shop.sync"]),
            ("[1", ["shop[1]"]),
            ("\\", ["shop\\"]),
            ("*", []),
            ("?", []),
            ("key", []),
        ],
    )
    def test_a_page_of_tasks_with_a_part_of_a_name(self, part: str, tasks: list[str], owners: Owners) -> None:
        for task in ("shop.sync", "shop[1]", "shop\\", "mail"):
            own(owners, task, "key *?")
        page = owners.page(part)
        assert (sorted(owner.task for owner in page.owners), page.total) == (tasks, len(tasks))

    @pytest.mark.parametrize("part", ["", "shop"])
    def test_pages_have_each_owner_once(self, part: str, owners: Owners, client: redis.Redis) -> None:
        for number in range(23):
            own(owners, "shop.sync", f"key {number}")
        own(owners, "shop.sync", "gone")
        pass_time(client, "shop.sync", "gone")
        pages = [owners.page(part, limit=10, offset=offset) for offset in (0, 10, 20, 30)]
        assert [(len(page.owners), page.total) for page in pages] == [(10, 23), (10, 23), (3, 23), (0, 23)]
        found = [owner.key for page in pages for owner in page.owners]
        assert sorted(found) == sorted(f"key {number}" for number in range(23))

    def test_ten_thousand(self, owners: Owners, client: redis.Redis) -> None:
        fields = [field_of(f"task {number % 10}", f"key {number:05d}") for number in range(MAX_LISTED)]
        ends = time.time() * 1000 + 3_600_000
        client.hset(KEYS.owners, mapping={field: f"12ab - w 1000 id-{field[-5:]}" for field in fields})
        client.zadd(KEYS.owner_ends, {field: ends + number for number, field in enumerate(fields)})
        assert owners.count() == MAX_LISTED
        everything = owners.page(limit=MAX_LISTED)
        assert [f"{owner.task}\0{owner.key}" for owner in everything.owners] == fields
        assert {owner.task_id[3:] for owner in everything.owners} == {field[-5:] for field in fields}
        page = owners.page("k 7", limit=3, offset=500)
        assert ([owner.key for owner in page.owners], page.total) == (["key 05007", "key 05017", "key 05027"], 1000)
        assert len(owners.list("task 7", limit=500)) == 500
        assert owners.release("task 7", "key 05007")
        assert owners.count() == MAX_LISTED - 1
        assert owners.page("k 7").total == 999

    @pytest.mark.parametrize(
        ("field", "record", "ends"),
        [
            ("shop.sync\0a", "", 2e12),
            ("shop.sync\0a", "no record", 2e12),
            ("shop.sync\0a", "12ab - x 1000 id", 2e12),
            ("shop.sync\0a", "12ab - w -1 id", 2e12),
            ("shop.sync\0a", f"12ab - w {'9' * 400} id", 2e12),
            ("shop.sync\0a", b"\xff\xfe", 2e12),
            ("shop.sync\0a", "12ab - w 1000 id", "-inf"),
            ("shop.sync\0a", "12ab x9 s 1000 id", 1),
        ],
    )
    def test_records_of_other_programs_are_ignored(
        self, field: str, record: str | bytes, ends: Any, owners: Owners, client: redis.Redis
    ) -> None:
        write(client, field, record, ends)
        own(owners, "shop.sync", "b")
        assert keys(owners.list()) == [("shop.sync", "b")]
        assert keys(owners.page("sync").owners) == [("shop.sync", "b")]
        assert owners.get("shop.sync", "a") is None

    def test_a_record_without_an_end_and_an_end_without_a_record_are_ignored(
        self, owners: Owners, client: redis.Redis
    ) -> None:
        client.hset(KEYS.owners, field_of("shop.sync", "a"), "12ab - w 1000 id")
        client.zadd(KEYS.owner_ends, {field_of("shop.sync", "b"): 2e12})
        assert owners.list() == []
        assert (owners.get("shop.sync", "a"), owners.get("shop.sync", "b")) == (None, None)

    def test_any_bytes_are_text(self, owners: Owners, client: redis.Redis) -> None:
        write(client, b"\xff\x1b[2J\0\xfe", b"12ab - w 1000 \xfd\n", "inf")
        write(client, b"no separator", b"12ab - w 1000 id", 1e300)
        found = owners.list()
        assert sorted(keys(found)) == [("no separator", ""), ("\udcff\x1b[2J", "\udcfe")]
        assert {owner.task_id for owner in found} == {"id", "\udcfd\n"}
        assert {owner.until.year for owner in found} == {9999}

    def test_another_type_is_an_error_that_names_the_key(self, owners: Owners, client: redis.Redis) -> None:
        client.set(KEYS.owner_ends, "x")
        for look in (owners.list, owners.count, lambda: owners.page("x")):
            with pytest.raises(WrongTypeError, match="owner_ends is a string"):
                look()


class TestRelease:
    def test_the_next_message_owns_the_key(self, owners: Owners) -> None:
        own(owners, "shop.sync", "a", task_id="first")
        own(owners, "shop.sync", "b")
        assert owners.release("shop.sync", "a")
        assert keys(owners.list()) == [("shop.sync", "b")]
        own(owners, "shop.sync", "a", task_id="second")
        assert must(owners.get("shop.sync", "a")).task_id == "second"

    def test_nobody_owned_it(self, owners: Owners) -> None:
        own(owners, "shop.sync", "a")
        assert owners.release("shop.sync", "a")
        assert not owners.release("shop.sync", "a")
        assert not owners.release("shop.sync", "other")
        assert not owners.release("single")

    def test_the_message_that_owned_it_runs(self, owners: Owners, client: redis.Redis) -> None:
        token = own(owners, "shop.sync", "a")
        assert owners.release("shop.sync", "a")
        assert client.zscore(KEYS.replaced, token) is None

    def test_a_message_that_is_being_sent(self, owners: Owners) -> None:
        token = own(owners, "shop.sync", "a", sent=False)
        assert owners.release("shop.sync", "a")
        assert not owners.confirm(field_of("shop.sync", "a"), token)


class TestInput:
    @pytest.mark.parametrize(
        ("task", "key", "message"),
        [
            ("", "a", "task '': must be 1 to 200 printable characters"),
            ("x" * 201, "a", "must be 1 to 200 printable characters"),
            ("a\nb", "a", r"task 'a\\nb': must be 1 to 200 printable characters"),
            (7, "a", "task '7': must be 1 to 200 printable characters"),
            ("t", "x" * 256, "256 bytes: must be 1 to 255"),
            ("t", "a\0b", "must not have control characters"),
            ("t", "\ud800", "must not have control characters"),
            ("t", 7, "key=7: must be text, got int"),
            ("t", b"a", "key=b'a': must be text, got bytes"),
        ],
    )
    def test_names_and_keys_are_checked(self, task: Any, key: Any, message: str, owners: Owners) -> None:
        for call in (owners.get, owners.release):
            with pytest.raises(InvalidValueError, match=message):
                call(task, key)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"limit": 0}, f"limit=0: must be a whole number from 1 to {MAX_LISTED:,}"),
            ({"limit": MAX_LISTED + 1}, f"limit={MAX_LISTED + 1}: must be"),
            ({"limit": True}, "limit=True: must be"),
            ({"offset": -1}, "offset=-1: must be"),
            ({"part": "a\nb"}, r"task 'a\\nb': must be at most 200 printable characters"),
            ({"part": "x" * 201}, "must be at most 200 printable characters"),
            ({"part": None}, "task 'None': must be at most 200"),
        ],
    )
    def test_pages_are_checked(self, arguments: dict[str, Any], message: str, owners: Owners) -> None:
        with pytest.raises(InvalidValueError, match=message):
            owners.page(**arguments)

    def test_lists_are_checked(self, owners: Owners) -> None:
        for limit in (0, 501):
            with pytest.raises(InvalidValueError, match=f"limit={limit}: must be a whole number from 1 to 500"):
                owners.list(limit=limit)
        with pytest.raises(InvalidValueError, match="task '': must be 1 to 200"):
            owners.list("")
