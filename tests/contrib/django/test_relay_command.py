"""Signals during `manage.py redis_queue_relay`."""

from __future__ import annotations

import signal
from typing import Any

import pytest

MODULE = "redis_queue.contrib.django.outbox.management.commands.redis_queue_relay"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_its_handlers_are_removed(
    number: signal.Signals, tables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.core.management import call_command

    from redis_queue.contrib.django.outbox.transfer import relay

    del tables
    before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)]
    relayed = []

    def signalled(using: str | None) -> Any:
        relayed.append(using)
        signal.raise_signal(number)
        return relay(using=using)

    monkeypatch.setattr(f"{MODULE}.relay", signalled)

    call_command("redis_queue_relay", interval=60.0)

    assert relayed == [None]
    assert [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)] == before
