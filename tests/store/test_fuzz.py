"""Any bytes from Redis, a pipe or a configuration give a value or an error of redis_queue, and nothing else.

REDIS_QUEUE_HYPOTHESIS_PROFILE=thorough runs thirty times as many examples.
"""

from __future__ import annotations

from typing import Any

import pytest
import redis
from hypothesis import example, given
from hypothesis import strategies as st

from redis_queue import ConfigurationError, InvalidValueError, Settings, connect
from redis_queue.delay.entries import parse_cursor
from redis_queue.keeper.protocol import read_line, write_line
from redis_queue.model import Quarantined
from redis_queue.store.codec import JSON, Codec, Record, UnreadableError
from redis_queue.store.ids import id_bytes, id_text
from redis_queue.store.keys import check_name
from redis_queue.store.records import _read_quarantined
from redis_queue.store.registry import Registry, RegistryRow
from tests.support.mutations import as_json, damaged_bytes, framed_records, fuzzed, json_values, objects_with, outcome

CODEC = Codec(JSON, 2**20)


class TestRecord:
    @fuzzed
    @given(st.binary(max_size=200) | framed_records() | damaged_bytes(framed_records()))
    def test_is_read_or_unreadable(self, record: bytes) -> None:
        found = outcome(lambda: CODEC.decode(record), UnreadableError)
        assert isinstance(found, Record) or str(found)


class TestIds:
    @fuzzed
    @given(st.binary(max_size=300))
    def test_keep_every_byte(self, raw: bytes) -> None:
        assert id_bytes(id_text(raw)) == raw

    @example("5:\ud800")
    @fuzzed
    @given(st.text(max_size=30) | st.tuples(st.integers(), st.text(max_size=5)).map(lambda row: f"{row[0]}:{row[1]}"))
    def test_in_a_cursor_are_read_or_refused(self, text: str) -> None:
        found = outcome(lambda: parse_cursor(text), InvalidValueError)
        if isinstance(found, tuple):
            assert (str(found[0]), id_text(found[1])) == (
                text.partition(":")[0].lstrip("0") or "0",
                text.partition(":")[2],
            )
        else:
            assert "must be DelayQueue.cursor(entry)" in str(found)


quarantined = st.builds(
    lambda at, name, reason, raw: b"%d %d %d\n%b%b%b" % (at, len(name), len(reason), name, reason, raw),
    st.integers(0, 10**14),
    st.binary(max_size=10),
    st.binary(max_size=10),
    st.binary(max_size=40),
)


class TestQuarantine:
    @fuzzed
    @given(st.binary(max_size=10), st.binary(max_size=10), st.binary(max_size=60))
    def test_keeps_every_byte(self, name: bytes, reason: bytes, raw: bytes) -> None:
        element = b"5 %d %d\n%b%b%b" % (len(name), len(reason), name, reason, raw)
        found = _read_quarantined(element, len(element))
        assert (id_bytes(found.id), found.raw, found.size) == (name, raw, len(raw))
        assert found.reason == reason.decode(errors="replace")

    @example(b"5 -3 1\nabc")
    @example(b"5 2 2\nabc")
    @fuzzed
    @given(st.binary(max_size=60) | damaged_bytes(quarantined))
    def test_of_any_bytes_is_read_without_losing_any(self, raw: bytes) -> None:
        found = _read_quarantined(raw, len(raw))
        assert isinstance(found, Quarantined)
        head, _, rest = raw.partition(b"\n")
        assert found.raw == raw or rest.endswith(found.raw)
        assert found.raw == raw or len(rest) == sum(map(int, head.split()[1:])) + len(found.raw)


class Row:
    """A stand-in for `Scripts`: a registry with one row."""

    def __init__(self, field: bytes, value: bytes | None) -> None:
        self._field, self._value = field, value

    def command(self, verb: str, *_: Any) -> Any:
        """Answer like Redis."""
        return [self._field] if verb == "HKEYS" else [self._value]


limits = objects_with(max_deliveries=st.integers(-5, 5), shards=st.integers(-5, 5))
fields = st.binary(max_size=20) | st.builds(
    lambda kind, name: f"{kind}:{name}".encode("utf-8", "surrogatepass"),
    st.sampled_from(["queue", "delay", "other"]),
    st.text(max_size=8),
)


@example(b"queue:x", b'{"max_deliveries": Infinity, "shards": 1}')
@example(b"delay:x", b'{"max_deliveries": 1, "shards": 1e999}')
@example(b"delay:x", b"[" * 100_000)
@fuzzed
@given(fields, st.none() | st.binary(max_size=40) | as_json(limits) | damaged_bytes(as_json(limits)))
def test_a_row_of_the_registry_is_a_queue_or_ignored(field: bytes, value: bytes | None) -> None:
    scripts: Any = Row(field, value)
    for known in Registry(scripts, "redis_queue").all():
        assert isinstance(known, RegistryRow)
        assert check_name(known.name)
        made = outcome(
            lambda known=known: Settings("p", 60, known.max_deliveries, shards=known.shards), ConfigurationError
        )
        assert isinstance(made, Settings) or "must be" in str(made)


anything = json_values | st.binary() | st.timedeltas() | st.datetimes() | st.decimals() | st.builds(object)
names = st.sampled_from(list(Settings.__dataclass_fields__)) | st.text(max_size=10) | st.integers() | st.none()


@fuzzed
@given(st.dictionaries(names, anything, max_size=2))
def test_settings_are_made_or_refused(values: Any) -> None:
    made = outcome(lambda: Settings.from_mapping(values), ConfigurationError)
    assert isinstance(made, Settings) or any(f"{name}=" in str(made) or repr(name) in str(made) for name in values)


URLS = [
    b"redis://user:s%40cret!@localhost:6379/1?socket_timeout=5",
    b"rediss://localhost/0?ssl_cert_reqs=none",
    b"unix:///tmp/redis.sock?db=2",
    b"redis+socket:///tmp/redis.sock?virtual_host=3",
    b"redis+sentinel://:s%40cret!@one:26379,two/primary/0",
    b"sentinel://one:26379;sentinel://two:26379",
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@fuzzed
@given(
    st.text(max_size=40) | damaged_bytes(st.sampled_from(URLS)).map(lambda url: url.decode(errors="surrogateescape"))
)
def test_a_url_gives_a_client_or_a_clear_error_without_the_password(url: str) -> None:
    made = outcome(lambda: connect(url, check=False), ConfigurationError)
    assert isinstance(made, redis.Redis) or "s%40cret!" not in str(made)


class TestKeeperLine:
    @fuzzed
    @given(st.text(max_size=40), st.none() | st.floats(0, 1e10))
    def test_survives_a_round_trip_as_one_line(self, tag: str, score: float | None) -> None:
        line = write_line(tag, score)
        assert line.count(b"\n") == 1
        found, at = read_line(line[:-1])
        assert found == tag
        assert at == (None if score is None else pytest.approx(score, abs=1e-6))

    @fuzzed
    @given(st.binary(max_size=40) | damaged_bytes(st.builds(write_line, st.text(max_size=10), st.none() | st.floats())))
    def test_is_read_or_refused(self, line: bytes) -> None:
        found = outcome(lambda: read_line(line), InvalidValueError)
        if isinstance(found, tuple):
            assert isinstance(found[0], str)
            assert isinstance(found[1], float | None)
        else:
            assert str(found).startswith("line=b")
