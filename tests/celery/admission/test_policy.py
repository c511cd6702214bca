"""FlowPolicy: which flows an app has, the keys of its calls, and what a worker refuses on startup."""

import logging
import re
from typing import Any
from unittest.mock import create_autospec

import pytest
import redis
from celery import Celery

from redis_queue import Flow
from redis_queue.basics.key_template import KeyTemplate
from redis_queue.celery import DurableTasks
from redis_queue.celery.admission.policy import FlowPolicy, TaskKeys
from redis_queue.celery.message.headers import FlowHeader
from redis_queue.celery.store import Store
from redis_queue.celery.worker import check_flows, warn_of_flows
from redis_queue.errors import ConfigurationError, InvalidValueError
from tests.support.celery.shared_tasks import without_shared_tasks


def make_app(flows: Any = None, *, broker: str = "redis://", leases: bool = True, **settings: Any) -> Celery:
    """Make an app with one task; it connects to nothing."""
    app = Celery("flows", broker=broker, set_as_current=False)
    app.conf.update(redis_queue_flow=flows, task_default_queue="mail", **settings)
    DurableTasks(app, leases=leases)

    @app.task(name="shop.sync", shared=False)  # type: ignore[untyped-decorator]
    def sync(shop_id: int, page: int = 1) -> None:
        """A task."""

    return app


@pytest.fixture(autouse=True)
def own_tasks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the shared tasks of other tests from the apps."""
    without_shared_tasks(monkeypatch)


class TestStart:
    @pytest.mark.parametrize(
        ("flows", "message"),
        [
            (5, "redis_queue_flow=5: must be a mapping"),
            ({"queue:mail": 5}, "redis_queue_flow['queue:mail']: 5: must be a mapping"),
            ({"queue:mail": {"limit": True}}, "redis_queue_flow['queue:mail']: limit=True"),
            ({"queue:mail": {"limits": 5}}, "unknown option 'limits': did you mean 'limit'?"),
            ({"queue:": {"limit": 5}}, "flow 'queue:': must be followed by the name of a queue"),
            ({"shop.sink": {"limit": 5}}, "unknown task: did you mean 'shop.sync'?"),
            ({"shop.sync": {"limit": 5, "key": "{shop}"}}, "unknown argument 'shop': task shop.sync takes"),
            ({"shop.sync": {"rate": "1/fortnight"}}, "rate='1/fortnight'"),
            ({"shop.sync": {"limit": 1, "key": ""}}, "redis_queue_flow['shop.sync']: key='': must not be empty"),
            (
                {"queue:mail": {"limit": 1, "key": "{shop_ib}"}},
                "redis_queue_flow['queue:mail']: key='{shop_ib}': no task of this app takes the argument 'shop_ib': "
                "did you mean 'shop_id'?",
            ),
            (
                {"queue:mail": {"fair": "{shop_id}{tenant}"}},
                "redis_queue_flow['queue:mail']: fair='{shop_id}{tenant}': no task of this app takes the argument "
                "'tenant': known are 'page', 'shop_id'",
            ),
            ({"queue:mail": {"fair": "{0}"}}, "redis_queue_flow['queue:mail']: fair='{0}': unknown argument '0'"),
        ],
    )
    def test_what_is_wrong_is_named(self, flows: Any, message: str) -> None:
        with pytest.raises(ConfigurationError, match=re.escape(message)):
            check_flows(make_app(flows))

    @pytest.mark.parametrize("template", ["{page}", "{shop_id}/{page}", "all", lambda *_: "all"])
    def test_good_flows_are_accepted(self, template: Any) -> None:
        check_flows(make_app({"queue:mail": {"fair": template}, "shop.sync": {"limit": 1, "key": "{shop_id}"}}))
        check_flows(make_app())

    def test_one_task_must_take_all_arguments_of_the_key_of_a_queue(self) -> None:
        app = make_app({"queue:mail": {"fair": "{shop_id}/{tenant}"}})

        @app.task(name="mail.send", shared=False)  # type: ignore[untyped-decorator]
        def send(tenant: str, text: str) -> None:
            """Take the other argument."""

        with pytest.raises(ConfigurationError) as raised:
            check_flows(app)
        assert str(raised.value) == (
            "redis_queue_flow['queue:mail']: fair='{shop_id}/{tenant}': no task of this app takes all of the arguments "
            "'shop_id', 'tenant'"
        )

        @app.task(name="mail.any", shared=False)  # type: ignore[untyped-decorator]
        def send_any(shop_id: int, **options: Any) -> None:
            """Take any argument."""

        check_flows(app)

    def test_tasks_without_arguments_are_named(self) -> None:
        app = Celery("flows", broker="redis://", set_as_current=False)
        app.conf.update(redis_queue_flow={"queue:mail": {"fair": "{tenant}"}}, task_default_queue="mail")
        DurableTasks(app)
        check_flows(app)

        @app.task(name="mail.clean", shared=False)  # type: ignore[untyped-decorator]
        def clean() -> None:
            """Take nothing."""

        with pytest.raises(ConfigurationError, match="takes the argument 'tenant': they take none"):
            check_flows(app)

    def test_limits_need_leases_one_redis_and_a_known_broker(self) -> None:
        flows = {"queue:mail": {"limit": 1}}
        for each in (flows, {"shop.sync": {"limit": 1}}):
            with pytest.raises(
                ConfigurationError, match=r"^flows and unique tasks need DurableTasks\(app\) with delays and leases$"
            ):
                check_flows(make_app(each, leases=False))
        check_flows(make_app(flows, broker="amqp://", redis_queue_url="redis://"))
        check_flows(make_app(flows, broker="redis://", redis_queue_url="redis:///1"))
        with pytest.raises(ConfigurationError, match="Redis or RabbitMQ broker, got memory"):
            check_flows(make_app(flows, broker="memory://", redis_queue_url="redis://"))
        in_cluster = make_app(flows)
        Store.of(in_cluster).client = create_autospec(redis.RedisCluster, instance=True)
        with pytest.raises(ConfigurationError, match="unique tasks need one Redis: redis_queue_url must not be"):
            check_flows(in_cluster)
        with pytest.raises(ConfigurationError, match="need atomic fetch"):
            check_flows(make_app(flows, redis_queue_atomic_fetch=False))

    def test_early_acknowledgement_of_a_task_contradicts_its_flow(self) -> None:
        app = make_app({"shop.sync": {"limit": 1}})
        app.tasks["shop.sync"].acks_late = False
        with pytest.raises(ConfigurationError, match="acks_late=False contradicts its flow"):
            check_flows(app)

    def test_a_queue_that_only_other_workers_consume_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        app = make_app({"queue:maul": {"limit": 1}})
        check_flows(app)
        warn_of_flows(app)
        assert "['queue:maul']: no task of this app goes to this queue: did you mean 'queue:mail'?" in caplog.text

    def test_early_acknowledgement_in_a_queue_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        app = make_app({"queue:mail": {"limit": 1}})
        app.tasks["shop.sync"].acks_late = False
        check_flows(app)
        assert not caplog.text
        warn_of_flows(app)
        assert "shop.sync is acknowledged when it starts" in caplog.text

    def test_the_setting_has_precedence_over_the_task_and_says_so_once(self, caplog: pytest.LogCaptureFixture) -> None:
        app = make_app({"shop.sync": {"limit": 1}})
        app.tasks["shop.sync"].flow = Flow(limit=2)
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                assert FlowPolicy.of(app).all() == {"shop.sync": Flow(limit=1)}
        assert caplog.text.count("redis_queue_flow has precedence") == 1

    def test_a_flow_of_another_type_is_refused(self) -> None:
        app = make_app()
        app.tasks["shop.sync"].flow = {"limit": 2}
        with pytest.raises(ConfigurationError, match="must be a redis_queue"):
            check_flows(app)


class TestHeader:
    def test_flow_and_keys_of_a_call(self) -> None:
        flows = {"queue:mail": {"fair": "t{page}"}, "shop.sync": {"limit": 1, "key": "shop:{shop_id}"}}
        policy = FlowPolicy.of(make_app(flows))
        assert policy.header("shop.sync", "mail", (5,), {}) == FlowHeader("shop.sync", "shop:5", "t1")
        assert policy.header("shop.sync", "other", (5,), {}) == FlowHeader("shop.sync", "shop:5", "")
        assert policy.header("unknown", "mail", (5,), {}) == FlowHeader("", "", "")
        assert policy.header("unknown", "mail", (), {"page": 7}) == FlowHeader("", "", "t7")
        assert policy.header("unknown", "other", (), {}) is None
        with pytest.raises(InvalidValueError, match="missing a required argument"):
            policy.header("shop.sync", "mail", (), {})

    @pytest.mark.parametrize(
        "value",
        [
            None,
            5,
            "x",
            [],
            ["a"],
            ["a", "b", 5],
            ["a", "b\0", ""],
            ["x" * 201, "", ""],
            ["queue:mail", "", ""],
            ["a", "k" * 256, ""],
            {"a": 1},
        ],
    )
    def test_a_hostile_header_is_no_header(self, value: Any) -> None:
        assert FlowHeader.of({"redis_queue_flow": value}) is None
        assert FlowHeader.of(value) is None

    def test_a_queue_is_no_task(self) -> None:
        assert FlowHeader.of({"redis_queue_flow": ["queue:mail", "", ""]}) is None

    def test_it_is_read_as_it_was_written(self) -> None:
        header = FlowHeader("shop.sync", "shop:5", "t1")
        assert FlowHeader.of(header.headers) == header


KEY = KeyTemplate("account:{account_id}")


@pytest.fixture
def app() -> Celery:
    """An app with one task; it connects to nothing."""
    app = Celery("keys", broker="memory://", set_as_current=False)
    define(app, "shop.charge")
    return app


def define(app: Celery, name: str) -> None:
    @app.task(name=name, shared=False)  # type: ignore[untyped-decorator]
    def charge(account_id: int, **options: Any) -> None:
        """Do nothing."""


def refused(app: Celery, template: KeyTemplate, name: str, *args: Any, **kwargs: Any) -> str:
    """Return the message that a call is refused with."""
    with pytest.raises(InvalidValueError) as raised:
        TaskKeys(app).of_task(name, template, args, kwargs)
    return str(raised.value)


def test_a_value_without_a_stable_text_is_named(app: Celery) -> None:
    message = refused(app, KEY, "shop.charge", [1, 2])
    assert message == (
        "task shop.charge: key='account:{account_id}': account_id=[1, 2]: must be text, a number or another hashable "
        "value, got list; pass one, or give a function as key"
    )
    assert len(refused(app, KEY, "shop.charge", [1] * 10_000)) < 300
    # The key of its queue.
    with pytest.raises(InvalidValueError) as raised:
        TaskKeys(app).of_any("shop.charge", KEY, [[1, 2]], {})
    assert str(raised.value) == message


def test_a_call_without_the_argument_is_told_so(app: Celery) -> None:
    assert refused(app, KeyTemplate("{shop}"), "shop.charge", 7) == (
        "task shop.charge: key='{shop}': the call lacks the argument 'shop'; pass it by keyword"
    )
    assert refused(app, KeyTemplate("{shop}"), "shop.elsewhere", 7) == (
        "task shop.elsewhere: key='{shop}': the call lacks the argument 'shop'; this app does not have the task: "
        "pass 'shop' by keyword"
    )


def test_an_argument_that_the_task_does_not_take_is_unknown(app: Celery) -> None:
    @app.task(name="shop.refund", shared=False)  # type: ignore[untyped-decorator]
    def refund(account_id: int) -> None:
        """Do nothing."""

    assert refused(app, KeyTemplate("{shop}"), "shop.refund", 7) == (
        "key='{shop}': unknown argument 'shop': task shop.refund takes account_id"
    )


def test_a_task_may_be_defined_after_its_first_call(app: Celery) -> None:
    keys = TaskKeys(app)
    assert keys.of_task("shop.later", KEY, (), {"account_id": 7}) == "account:7"
    assert keys.of_any("shop.later", KEY, (7,), {}) == ""
    define(app, "shop.later")
    assert keys.of_task("shop.later", KEY, (8,), {}) == "account:8"
    assert keys.of_any("shop.later", KEY, (8,), {}) == "account:8"
