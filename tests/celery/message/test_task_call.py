"""TaskCall and push_task: valid calls are stored, invalid calls are refused before anything is stored."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest
import redis
from celery import Celery
from kombu.utils.json import dumps

from redis_queue import BodyError, DelayQueue, EntryExistsError, InvalidDelayError, InvalidNameError, InvalidValueError
from redis_queue.celery import TaskCall, push_task
from redis_queue.celery.message.entry import OPTIONS
from tests.support.celery.brokers import ManualClock


@dataclass
class Point:
    x: int = 1


class TestTaskCall:
    @pytest.mark.parametrize(
        "call",
        [
            TaskCall("shop.remind"),
            TaskCall("shop.remind", [1, "two", None, 3.5, True, [1, {"a": []}]]),
            TaskCall("shop.remind", (), {"order": "№ 42", "nested": {"deep": [1]}}),
            TaskCall("shop.remind", [1], {"a": 2}, {"queue": "mail", "priority": 3, "headers": {"x": "y"}}),
        ],
        ids=["name only", "arguments", "keywords", "everything"],
    )
    def test_json_round_trip(self, call: TaskCall) -> None:
        back = TaskCall.from_payload(json.loads(json.dumps(call.payload())))

        assert (back.task, list(back.args), back.kwargs, back.options) == (
            call.task,
            list(call.args),
            call.kwargs,
            call.options,
        )

    @pytest.mark.parametrize("name", sorted(OPTIONS))
    def test_takes_every_known_option(self, name: str) -> None:
        assert TaskCall("shop.remind", options={name: None}).options == {name: None}

    @pytest.mark.parametrize("name", ["countdown", "eta"])
    def test_refuses_celery_delay_options_with_a_hint(self, name: str) -> None:
        with pytest.raises(InvalidValueError, match=rf"'{name}'.*\bdelay") as refused:
            TaskCall("shop.remind", options={name: 5})
        assert "due_at" in str(refused.value)

    @pytest.mark.parametrize(
        ("wrong", "right"),
        [
            ("prioritty", "priority"),
            ("queues", "queue"),
            ("expire", "expires"),
            ("routing-key", "routing_key"),
            ("soft_timelimit", "soft_time_limit"),
        ],
    )
    def test_suggests_the_nearest_option(self, wrong: str, right: str) -> None:
        with pytest.raises(InvalidValueError, match=f"'{wrong}'.*did you mean '{right}'"):
            TaskCall("shop.remind", options={wrong: 1})

    @pytest.mark.parametrize("name", ["task_id", "link", "link_error", "chord", "group_id", "zzz"])
    def test_lists_the_known_options_if_none_is_similar(self, name: str) -> None:
        with pytest.raises(InvalidValueError, match=f"'{name}'.*serializer.*time_limit"):
            TaskCall("shop.remind", options={name: 1})

    @pytest.mark.parametrize("task", ["", None, 5, b"shop.remind", ["shop.remind"]])
    def test_refuses_an_invalid_task_name(self, task: Any) -> None:
        with pytest.raises(InvalidValueError, match="task="):
            TaskCall(task)

    @pytest.mark.parametrize("args", ["abc", b"abc", None, 5, {"a": 1}, {1, 2}, iter([1])])
    def test_refuses_arguments_that_are_not_a_list(self, args: Any) -> None:
        with pytest.raises(InvalidValueError, match="args="):
            TaskCall("shop.remind", args)

    @pytest.mark.parametrize("value", [None, "abc", 5, [("a", 1)], {1: "a"}, {None: 1}])
    @pytest.mark.parametrize("name", ["kwargs", "options"])
    def test_refuses_keywords_and_options_that_are_not_a_mapping_of_names(self, name: str, value: Any) -> None:
        with pytest.raises(InvalidValueError, match=f"{name}="):
            TaskCall("shop.remind", **{name: value})

    @pytest.mark.parametrize(
        "payload",
        [
            None,
            5,
            "shop.remind",
            b"shop.remind",
            ["shop.remind"],
            {},
            {"args": [1]},
            {"task": ""},
            {"task": "shop.remind", "args": "abc"},
            {"task": "shop.remind", "kwargs": None},
            {"task": "shop.remind", "options": {"countdown": 1}},
            {"task": "shop.remind", "extra": 1},
        ],
    )
    def test_is_not_read_from_invalid_payloads(self, payload: Any) -> None:
        with pytest.raises(InvalidValueError):
            TaskCall.from_payload(payload)

    def test_is_read_from_a_payload_with_only_a_name(self) -> None:
        assert TaskCall.from_payload({"task": "shop.remind"}) == TaskCall("shop.remind")


class TestPushTask:
    def test_stores_the_call_until_it_is_due(self, queue: DelayQueue, clock: ManualClock) -> None:
        id_ = push_task(queue, "shop.remind", ("42",), {"tone": "kind"}, delay=90, queue="mail", priority=3)

        (entry,) = queue.list()
        assert entry.id == id_
        assert entry.due_at == clock.after(90)
        assert entry.payload == {
            "task": "shop.remind",
            "args": ["42"],
            "kwargs": {"tone": "kind"},
            "options": {"queue": "mail", "priority": 3},
        }

    def test_takes_the_name_of_a_celery_task(self, queue: DelayQueue) -> None:
        app = Celery("tests", broker="memory://", set_as_current=False)

        @app.task(name="shop.remind", shared=False)  # type: ignore[untyped-decorator]
        def remind() -> None: ...

        push_task(queue, remind)

        assert [entry.payload["task"] for entry in queue] == ["shop.remind"]

    def test_takes_arguments_by_keyword_as_apply_async_does(self, queue: DelayQueue) -> None:
        push_task(queue, "shop.remind", args=["42"], kwargs={"tone": "kind"})

        (entry,) = queue.list()
        assert (entry.payload["args"], entry.payload["kwargs"]) == (["42"], {"tone": "kind"})

    def test_takes_a_due_time_instead_of_a_delay(self, queue: DelayQueue, clock: ManualClock) -> None:
        push_task(queue, "shop.remind", due_at=clock.after(3600))

        assert queue.next_due() == clock.after(3600)

    def test_replaces_the_waiting_call_with_the_same_id(self, queue: DelayQueue, clock: ManualClock) -> None:
        for number in range(3):
            assert push_task(queue, "shop.save", [number], id="form-7", delay=10 + number) == "form-7"

        (entry,) = queue.list()
        assert entry.payload["args"] == [2]
        assert entry.due_at == clock.after(12)

    def test_keeps_or_refuses_the_same_id_on_request(self, queue: DelayQueue) -> None:
        push_task(queue, "shop.save", [1], id="form-7", delay=10)
        push_task(queue, "shop.save", [2], id="form-7", delay=10, on_conflict="keep")
        with pytest.raises(EntryExistsError, match="form-7"):
            push_task(queue, "shop.save", [3], id="form-7", delay=10, on_conflict="error")

        assert [entry.payload["args"] for entry in queue] == [[1]]

    def test_takes_keywords_and_headers_from_any_mapping(self, queue: DelayQueue) -> None:
        fixed: Mapping[str, Any] = MappingProxyType({"tone": "kind"})

        push_task(queue, "shop.remind", (), fixed, headers=fixed)

        (entry,) = queue.list()
        assert entry.payload["kwargs"] == {"tone": "kind"}
        assert entry.payload["options"] == {"headers": {"tone": "kind"}}

    def test_stores_other_types_as_celery_writes_them(self, queue: DelayQueue) -> None:
        given = [Decimal("1.5"), datetime(2030, 1, 1, tzinfo=timezone.utc), b"bytes"]

        push_task(queue, "shop.remind", given, {"deep": {"list": given}})

        (entry,) = queue.list()
        written = json.loads(dumps(given))
        assert written[0] == {"__type__": "decimal", "__value__": "1.5"}
        assert (entry.payload["args"], entry.payload["kwargs"]) == (written, {"deep": {"list": written}})
        assert entry.payload["options"]["argsrepr"] == repr(tuple(given))

    @pytest.mark.parametrize(
        "argument",
        [object(), {1, 2}, float("nan"), "\ud800", threading.Lock(), iter([1]), Point()],
        ids=lambda argument: type(argument).__name__,
    )
    def test_refuses_arguments_that_are_not_json(self, queue: DelayQueue, argument: Any) -> None:
        kind = type(argument).__name__
        with pytest.raises(BodyError, match=rf"^shop\.remind: args\[1\] of type {kind} cannot be stored as JSON: "):
            push_task(queue, "shop.remind", [1, argument])
        with pytest.raises(BodyError, match=r"^shop\.remind: kwargs\['deep'\] of type dict cannot be stored as JSON: "):
            push_task(queue, "shop.remind", (), {"deep": {"list": [argument]}})

        assert len(queue) == 0

    def test_refuses_a_call_that_is_too_large(self, queue: DelayQueue) -> None:
        with pytest.raises(BodyError, match="262144"):
            push_task(queue, "shop.remind", ["x" * 300_000])

        assert len(queue) == 0

    @pytest.mark.parametrize(
        ("refused", "error", "named"),
        [
            ({"countdown": 5}, InvalidValueError, "countdown"),
            ({"prioritty": 5}, InvalidValueError, "prioritty"),
            ({"delay": -1}, InvalidDelayError, "-1"),
            ({"delay": float("nan")}, InvalidDelayError, "nan"),
            ({"due_at": datetime(2030, 1, 1)}, InvalidDelayError, "2030"),
            ({"id": ""}, InvalidNameError, "''"),
            ({"on_conflict": "maybe"}, InvalidValueError, "maybe"),
        ],
    )
    def test_refuses_invalid_values_before_it_calls_redis(
        self, refused: dict[str, Any], error: type[Exception], named: str
    ) -> None:
        nowhere = DelayQueue("scheduled", redis.Redis(unix_socket_path="/nonexistent/redis.sock"))
        with pytest.raises(error, match=named):
            push_task(nowhere, "shop.remind", **refused)
