"""Key names: one hash tag each, and no name reaches into another queue."""

from __future__ import annotations

import fnmatch
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.crc import key_slot

from redis_queue import InvalidNameError
from redis_queue.store.ids import MAX_ID, check_id
from redis_queue.store.keys import MAX_NAME, Keys, Kind, PrefixKeys, check_name, parse, pattern

relaxed = settings(deadline=None, max_examples=50)
printable = st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" "), min_size=1, max_size=MAX_NAME)
names = printable | st.text("{}:%*?[]\\ ab", min_size=1, max_size=20)
prefixes = names.filter(lambda prefix: len(prefix) <= 100)
kinds: st.SearchStrategy[tuple[Kind, int | None]] = st.just(("queue", None)) | st.tuples(
    st.just("delay"), st.integers(0, 1023)
)
repeated = st.builds(lambda text, times: text * times, st.text(max_size=6), st.integers(0, 100))
tags = st.tuples(prefixes, kinds, names)


def make(tag: tuple[str, tuple[Kind, int | None], str]) -> Keys:
    prefix, (kind, shard), name = tag
    return Keys(prefix, kind, name, shard)


@relaxed
@given(tags)
def test_any_printable_name_gives_keys_with_exactly_one_hash_tag(tag: tuple[str, tuple[Kind, int | None], str]) -> None:
    found = make(tag)
    every = [*found.all(), found.slot("0123abcd")]
    assert len(set(every)) == len(every)
    for key in every:
        assert re.fullmatch(rb"\{[A-Za-z0-9_.~%:-]+\}:[a-z_]+(:[0-9a-z]+)?", key), key
    assert len({key_slot(key) for key in every}) == 1


@relaxed
@given(tags, tags)
def test_different_queues_never_share_a_key(
    one: tuple[str, tuple[Kind, int | None], str], other: tuple[str, tuple[Kind, int | None], str]
) -> None:
    shared = set(make(one).all()) & set(make(other).all())
    assert bool(shared) == (one == other)


@relaxed
@given(tags, prefixes)
def test_a_key_can_be_parsed(tag: tuple[str, tuple[Kind, int | None], str], other: str) -> None:
    prefix, (kind, shard), name = tag
    for key in (*make(tag).all(), make(tag).slot("0123abcd")):
        part = key.decode().rpartition("}:")[2].partition(":")[0]
        assert parse(prefix, key) == (kind, name, shard, part)
        assert prefix == other or parse(other, key) is None
        assert fnmatch.fnmatchcase(key.decode(), pattern(prefix))


@pytest.mark.parametrize(
    "key",
    [b"", b"{p:queue:a}:", b"{p:queue:a:1}:meta", b"{p:delay:a}:meta", b"{p:list:a}:meta", b"\xff{p:queue:a}:meta"],
)
def test_other_keys_are_not_parsed(key: bytes) -> None:
    assert parse("p", key) is None


@relaxed
@given(tags, tags)
def test_a_pattern_matches_the_keys_of_its_own_queue_only(
    one: tuple[str, tuple[Kind, int | None], str], other: tuple[str, tuple[Kind, int | None], str]
) -> None:
    pattern = make(one).pattern
    assert not re.search(r"[*?\[\]\\]", pattern[:-1])
    assert all(fnmatch.fnmatchcase(key.decode(), pattern) for key in make(one).all())
    if one != other:
        assert not any(fnmatch.fnmatchcase(key.decode(), pattern) for key in make(other).all())


@relaxed
@given(prefixes, prefixes, tags)
def test_the_registry_is_not_a_key_of_a_queue(
    one: str, other: str, tag: tuple[str, tuple[Kind, int | None], str]
) -> None:
    assert (PrefixKeys(one).registry == PrefixKeys(other).registry) == (one == other)
    assert b"{" not in PrefixKeys(one).registry
    assert PrefixKeys(one).registry not in make(tag).all()


@relaxed
@given(repeated)
def test_a_name_is_printable_and_not_too_long_or_refused(name: str) -> None:
    good = 1 <= len(name) <= MAX_NAME and name.isprintable()
    if good:
        assert check_name(name) == name
        assert Keys("p", "queue", name).meta.isascii()
    else:
        with pytest.raises(InvalidNameError, match=r"queue name=.* must be 1 to 200 printable characters"):
            check_name(name)


@relaxed
@given(repeated)
def test_an_id_is_printable_and_not_too_long_or_refused(value: str) -> None:
    if 1 <= len(value) <= MAX_ID and value.isprintable():
        assert check_id(value) == value
    else:
        with pytest.raises(InvalidNameError, match=r"dedupe_key=.* must be 1 to 255 printable characters"):
            check_id(value, name="dedupe_key")


def test_common_names_stay_readable() -> None:
    assert Keys("redis_queue", "queue", "orders").meta == b"{redis_queue:queue:orders}:meta"
    assert Keys("shop", "delay", "mail.high-prio_1", 7).waiting == b"{shop:delay:mail.high-prio_1:7}:waiting"
    assert Keys("p", "queue", "a{b}:c").slot("x") == b"{p:queue:a%7Bb%7D%3Ac}:slot:x"
    assert PrefixKeys("redis_queue").registry == b"redis_queue:registry"
