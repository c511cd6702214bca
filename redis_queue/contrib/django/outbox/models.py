"""The table of the outbox; its columns return values unchanged, on every database and with every time zone setting."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Any, ClassVar

from django.db import models
from django.db.models.expressions import Func

from redis_queue.basics.times import from_ms, to_ms


class TaskId(models.CharField):
    """Id of a task. MySQL and MariaDB, too, distinguish ids that differ in case or in spaces at the end."""

    def db_parameters(self, connection: Any) -> Any:
        """Name a collation that compares bytes."""
        found = super().db_parameters(connection)
        if connection.vendor == "mysql":
            found["collation"] = "utf8mb4_nopad_bin" if connection.mysql_is_mariadb else "utf8mb4_0900_bin"
        return found


class Document(models.TextField):
    """JSON stored as text.

    The JSON type of PostgreSQL sorts keys, turns large floats into integers, and refuses strings with a zero byte.
    """

    def from_db_value(self, value: str | None, *_: Any) -> Any:
        return None if value is None else json.loads(value)

    def get_prep_value(self, value: Any) -> str:
        """Return ASCII, which every database can store."""
        return json.dumps(value, allow_nan=False, separators=(",", ":"))


class Moment(models.BigIntegerField):
    """An aware datetime, stored as milliseconds since the epoch, rounded up; USE_TZ has no effect."""

    def from_db_value(self, value: int | None, *_: Any) -> datetime | None:
        return None if value is None else from_ms(value)

    def get_prep_value(self, value: datetime | None) -> int | None:
        return None if value is None else to_ms(value)


class ServerTime(Func):
    """Current time in milliseconds since the epoch, by the database server's clock; with SQLite by this host's."""

    output_field = models.BigIntegerField()

    def as_sql(self, *_: Any, **__: Any) -> Any:
        """Use the clock of this host."""
        return "%s", [time.time_ns() // 1_000_000]

    def as_postgresql(self, *_: Any, **__: Any) -> Any:
        """Use the current time of the server, not the start of the transaction."""
        return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS bigint)", []

    def as_mysql(self, *_: Any, **__: Any) -> Any:
        """Use the current time of the server in UTC, which no time zone shifts."""
        return "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000", []


class Stamp(Moment):
    """Time at which the row was written, by the clock of the database."""

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        """Return the current time for a new row without one."""
        value = super().pre_save(model_instance, add)
        return ServerTime() if add and value is None else value


class Call(models.Model):
    """A task call that is committed but not yet in the DelayQueue.

    It is due at *due_at* by the clock of Redis, or *countdown* ms after *stored_at*, whatever the clocks are.
    *failures* counts how often Redis refused this call while accepting others. A call with *set_aside* is invalid and
    is not relayed; *error* says why.
    """

    task_id = TaskId(max_length=255, unique=True)
    task = models.TextField()
    payload = Document()
    due_at = Moment(null=True)
    countdown = models.BigIntegerField(null=True)
    stored_at = Stamp(editable=False)
    failures = models.PositiveIntegerField(default=0)
    set_aside = models.BooleanField(default=False)
    error = models.TextField(blank=True, default="")

    class Meta:
        """Relayed in the order of writing."""

        ordering = ("id",)
        # In the order of relays: MySQL would lock all rows to sort them.
        indexes: ClassVar = [models.Index(fields=["set_aside", "failures", "id"], name="redis_queue_outbox_relays")]

    def __str__(self) -> str:
        return f"{self.task} {self.task_id}"
