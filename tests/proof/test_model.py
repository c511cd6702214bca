"""The model of Redis answers as the server does: any calls of its commands, alone and in scripts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proof.model import Model, ModelError
from redis_queue.store.script_files import all_scripts

LUA: Final = "return redis.call(unpack(ARGV))"
CALLED: Final = "local r = redis.pcall(unpack(ARGV)); if type(r) == 'table' and r.err then return 'E' end; return r"

key = st.sampled_from(["string", "hash", "list", "set", "zset", "other"])
text = st.sampled_from(["a", "b", "c", "", "1", "-2", "\x00\xff", "1.5", "aa"])
score = st.sampled_from(
    ["0", "1", "2", "-1.5", "1700000000123", "1700000000.123", "inf", "-inf", "nan", "x", "1e3", ".5"]
)
bound = st.sampled_from(["-inf", "+inf", "0", "1", "(1", "2", "(2", "1700000000123", "x"])
number = st.sampled_from(["0", "1", "2", "3", "-1", "-2", "-3", "100", "x", "1.5", "01", ""])
# The commands in their forms: KEY, TEXT, SCORE, BOUND, NUMBER stand for a value, * for up to three repeats of the rest.
FORMS: Final = """
TYPE KEY | EXISTS KEY KEY | DEL KEY KEY | UNLINK KEY | PTTL KEY | TTL KEY | EXPIRE KEY 500 | PEXPIRE KEY 500000
PEXPIRE KEY -1 | PEXPIRE KEY x | PERSIST KEY | GET KEY | STRLEN KEY | GETRANGE KEY NUMBER NUMBER | SET KEY TEXT
SET KEY TEXT NX | SET KEY TEXT XX | SET KEY TEXT PX 500000 | SET KEY TEXT EX 500 NX | SET KEY TEXT PX 0
SET KEY TEXT KEEPTTL | INCR KEY | INCRBY KEY NUMBER | HGET KEY TEXT | HMGET KEY * TEXT
HEXISTS KEY TEXT | HSTRLEN KEY TEXT | HLEN KEY | HKEYS KEY
HGETALL KEY | HVALS KEY | HRANDFIELD KEY 100 WITHVALUES | HSET KEY * TEXT TEXT | HSET KEY TEXT TEXT TEXT
HSETNX KEY TEXT TEXT | HDEL KEY * TEXT | HINCRBY KEY TEXT NUMBER | LLEN KEY | LINDEX KEY NUMBER
LRANGE KEY NUMBER NUMBER | LPOS KEY TEXT | LPUSH KEY * TEXT | RPUSH KEY * TEXT | LPOP KEY | RPOP KEY
RPOPLPUSH KEY KEY | LSET KEY NUMBER TEXT | LTRIM KEY NUMBER NUMBER | LREM KEY NUMBER TEXT | SADD KEY * TEXT
SREM KEY * TEXT | SCARD KEY | SISMEMBER KEY TEXT | SMEMBERS KEY | ZCARD KEY | ZSCORE KEY TEXT | ZMSCORE KEY * TEXT
ZRANK KEY TEXT | ZADD KEY * SCORE TEXT | ZADD KEY NX * SCORE TEXT | ZADD KEY XX CH * SCORE TEXT
ZADD KEY XX GT * SCORE TEXT | ZADD KEY LT CH SCORE TEXT | ZADD KEY NX GT SCORE TEXT | ZADD KEY NX XX SCORE TEXT
ZINCRBY KEY SCORE TEXT | ZREM KEY * TEXT | ZCOUNT KEY BOUND BOUND | ZRANGEBYSCORE KEY BOUND BOUND
ZRANGEBYSCORE KEY BOUND BOUND WITHSCORES LIMIT NUMBER NUMBER | ZRANGE KEY NUMBER NUMBER WITHSCORES
ZRANGE KEY NUMBER NUMBER REV | ZRANGE KEY BOUND BOUND BYSCORE LIMIT NUMBER NUMBER WITHSCORES | ZRANGE KEY 0 1 LIMIT 0 1
ZRANGE KEY BOUND BOUND BYSCORE REV LIMIT NUMBER NUMBER | ZREVRANGE KEY NUMBER NUMBER WITHSCORES
ZREVRANGE KEY NUMBER NUMBER | ZREMRANGEBYSCORE KEY BOUND BOUND | PUBLISH TEXT TEXT | PUBSUB NUMSUB TEXT TEXT
"""
VALUES: Final = {"KEY": key, "TEXT": text, "SCORE": score, "BOUND": bound, "NUMBER": number}
UNORDERED: Final = frozenset(("HKEYS", "HVALS", "SMEMBERS"))
PAIRS: Final = frozenset(("HGETALL", "HRANDFIELD"))
READS: Final = {
    b"string": "GET",
    b"hash": "HGETALL",
    b"list": "LRANGE 0 -1",
    b"set": "SMEMBERS",
    b"zset": "ZRANGE 0 -1 WITHSCORES",
}


def words_of(form: str) -> st.SearchStrategy[list[str]]:
    """Return the strategy for one form."""
    head, _, repeated = form.partition("*")
    one = [VALUES.get(word, st.just(word)) for word in head.split()]
    rest = st.tuples(*(VALUES[word] for word in repeated.split()))
    more = st.lists(rest, min_size=1, max_size=3) if repeated else st.just([()])
    return st.builds(lambda first, found: [*first, *(word for row in found for word in row)], st.tuples(*one), more)


commands = st.one_of([words_of(form.strip()) for line in FORMS.strip().split("\n") for form in line.split("|")])
ways = st.sampled_from(["alone", "alone", "script", "checked"])


def sent(way: str, words: Sequence[str]) -> list[bytes]:
    """Return the command as it is sent: alone, by a script, or by one that catches errors."""
    plain = [word.encode("latin-1") for word in words]
    return plain if way == "alone" else [b"EVAL", (LUA if way == "script" else CALLED).encode(), b"0", *plain]


def normal(name: str, reply: Any) -> Any:
    """Return a reply without what may differ: the texts of errors, the order of fields, the digits of scores."""
    if isinstance(reply, (redis.ResponseError, ModelError)):
        found = re.match(r"(?:Error running script.*?: )?-?([A-Z]+) ", f"{reply} ")
        return f"error {found[1] if found and found[1] in ('WRONGTYPE', 'OOM') else 'ERR'}"
    if isinstance(reply, list):
        rows = [normal(name, row) for row in reply]
        if name in PAIRS:
            return sorted(zip(rows[::2], rows[1::2], strict=True))
        return sorted(rows) if name in UNORDERED else rows
    if isinstance(reply, bytes) and name.startswith("Z") and re.fullmatch(rb"[-+.\de]+", reply):
        return float(reply)
    # The time between the two calls.
    return round(reply / 100_000) if name == "PTTL" else reply


def plain(client: redis.Redis, *words: Any) -> Any:
    """Return the reply without what redis-py makes of it; an error is returned."""
    connection = client.connection_pool.get_connection()
    try:
        connection.send_command(*words)
        return connection.read_response()
    except redis.ResponseError as error:
        return error
    finally:
        client.connection_pool.release(connection)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(calls=st.lists(st.tuples(ways, commands), min_size=20, max_size=60))
def test_every_reply_is_that_of_the_server(calls: list[tuple[str, list[str]]], client: redis.Redis) -> None:
    client.flushall()
    model = Model(lambda: 1_700_000_000_000_000)
    for way, words in calls:
        command = sent(way, words)
        of_server = normal(words[0], plain(client, *command))
        assert normal(words[0], model.call(*command)) == of_server, (way, words)
    for name in sorted(client.scan_iter("*")):
        read = READS[client.type(name)]
        command = [word.encode() for word in read.split()]
        command.insert(1, name)
        reply = normal(command[0].decode(), model.call(*command))
        assert reply == normal(command[0].decode(), plain(client, *command)), name
    assert model.call(b"SCAN", b"0") == [b"0", sorted(client.scan_iter("*"))]


def test_it_runs_every_script() -> None:
    model = Model(lambda: 1)

    assert all(model.call(b"SCRIPT", b"LOAD", script.source.encode()) for script in all_scripts())
