"""docs/metrics.md, the Grafana dashboard and the alerts use exactly the exported metrics."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from redis_queue.operate.inspector import Inspector
from redis_queue.operate.metrics import Collector
from tests.support.parts import require
from tests.support.paths import ROOT

DOCUMENT = (ROOT / "docs" / "metrics.md").read_text()
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
DURATION = re.compile(r"\d+[smhd]")


def exported() -> dict[str, Any]:
    """Return all metrics by name, without reading any."""
    return {metric.name: metric for metric in Collector(Inspector(redis.Redis(port=1))).describe()}


def samples() -> set[str]:
    return {f"{name}{suffix}" for name, metric in exported().items() for suffix in SUFFIXES[metric.type]}


def metrics_in(expression: str) -> set[str]:
    return set(re.findall(r"\bredis_queue_\w+", expression))


def panels() -> list[dict[str, Any]]:
    loaded: dict[str, Any] = json.loads((ROOT / "monitoring" / "grafana.json").read_text())
    found: list[dict[str, Any]] = loaded["panels"]
    return found


def rules() -> list[dict[str, Any]]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "monitoring" / "alerts.yml").read_text())
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def promtool(tests: Path) -> None:
    """Run unit tests of rules and expressions."""
    command = [require("prometheus"), "test", "rules", str(tests)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_document_lists_every_metric_with_its_type_and_labels() -> None:
    rows = re.findall(r"^\| `(redis_queue_\w+)` \| (\w+) \| ?([\w, ]*?) ?\| .+ \|$", DOCUMENT, re.MULTILINE)
    table = {name: (kind, tuple(filter(None, labels.strip().split(", ")))) for name, kind, labels in rows}
    assert len(table) == len(rows)
    assert table == {
        f"{name}_total" if metric.type == "counter" else name: (metric.type, tuple(metric._labelnames))
        for name, metric in exported().items()
    }


def test_every_metric_has_a_help_text_that_is_a_sentence() -> None:
    assert all(re.fullmatch(r"\S.+\.", metric.documentation) for metric in exported().values())


def test_the_document_and_the_dashboard_use_only_exported_metrics() -> None:
    assert {name for name in metrics_in(DOCUMENT) if name != "redis_queue_ready"} <= samples() | set(exported())
    shown = {name for panel in panels() for target in panel["targets"] for name in metrics_in(target["expr"])}
    assert shown == samples(), "the dashboard must show every metric"


def test_single_numbers_are_instant_and_all_queries_select_the_job() -> None:
    for panel in panels():
        for target in panel["targets"]:
            assert target.get("instant", False) == (panel["type"] == "stat")
            assert target["expr"].count('{job=~"$job"') == len(re.findall(r"\bredis_queue_\w+", target["expr"]))


def test_every_queue_with_a_panel_can_be_selected() -> None:
    loaded = json.loads((ROOT / "monitoring" / "grafana.json").read_text())
    (query,) = (one["query"]["query"] for one in loaded["templating"]["list"] if one["name"] == "queue")
    (names,) = re.findall(r'__name__=~"([^"]+)"', query)
    sources = {name for name in samples() if re.fullmatch(names, name)}
    assert sources == {"redis_queue_ready", "redis_queue_celery_ready", "redis_queue_task_executed_total"}


def test_the_query_for_autoscalers_has_a_value_if_nobody_tells_what_is_in_flight(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "autoscaling.md").read_text()
    (text,) = re.findall(r"```yaml\n(  triggers:\n    - type: prometheus\n.+?)```", page, re.DOTALL)
    (trigger,) = yaml.safe_load(text)["triggers"]
    series = {"ready": 50, "due_within_300s": 7}
    test = {
        "input_series": [
            {"series": f'redis_queue_celery_{name}{{queue="{queue}"}}', "values": f"{value}x10"}
            for name, value in series.items()
            for queue in ("mail", "other")
        ],
        "promql_expr_test": [
            {"expr": trigger["metadata"]["query"], "eval_time": "5m", "exp_samples": [{"labels": "{}", "value": 57}]}
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}))
    promtool(tmp_path / "test.yml")


def test_the_panels_do_not_overlap() -> None:
    places = [
        (x, y)
        for panel in panels()
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(places)) == len(places)
    assert max(x for x, _ in places) < 24
    assert len({panel["id"] for panel in panels()}) == len(panels())


def test_brackets_of_all_expressions_are_balanced() -> None:
    for expression in [t["expr"] for panel in panels() for t in panel["targets"]] + [rule["expr"] for rule in rules()]:
        for opening, closing in ("()", "[]", "{}"):
            assert expression.count(opening) == expression.count(closing), expression


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_every_alert_is_complete(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"RedisQueue[A-Z]\w+", rule["alert"])
    assert metrics_in(rule["expr"]) <= samples()
    assert metrics_in(rule["expr"])
    assert rule["labels"] in [{"severity": severity} for severity in ("critical", "warning", "info")]
    assert "for" not in rule or DURATION.fullmatch(rule["for"])
    assert set(rule["annotations"]) == {"summary", "description", "action"}
    assert all(isinstance(text, str) and len(text) > 20 for text in rule["annotations"].values())


def test_the_alerts_fire_when_they_should() -> None:
    promtool(ROOT / "monitoring" / "alerts_test.yml")


def test_every_alert_about_workers_flows_and_celery_queues_is_tested() -> None:
    tests = (ROOT / "monitoring" / "alerts_test.yml").read_text()
    for rule in rules():
        if re.search(r"redis_queue_(?:celery|task|workers|keepers|incident)\b|redis_queue_celery_", rule["expr"]):
            assert f"alertname: {rule['alert']}" in tests, rule["alert"]


def test_two_environments_are_never_matched() -> None:
    """A match on the queue alone would mix the entries of both."""
    for rule in rules():
        assert "on (queue)" not in rule["expr"]


def test_dead_letters_after_a_purge_raise_an_alert() -> None:
    (dead,) = (rule["expr"] for rule in rules() if rule["alert"] == "RedisQueueDeadLetters")
    assert "delta(" not in dead
    assert "min_over_time(" in dead


def test_every_problem_has_an_alert() -> None:
    watched = {name for rule in rules() for name in metrics_in(rule["expr"])}
    assert watched >= {
        "redis_queue_up",
        "redis_queue_incident",
        "redis_queue_dead",
        "redis_queue_quarantined",
        "redis_queue_leases_lost_total",
        "redis_queue_workers",
        "redis_queue_keepers_dead",
    }
    assert len({rule["alert"] for rule in rules()}) == len(rules())
