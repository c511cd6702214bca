"""Columns that give back what was put in, on every database and with every setting of time zones."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Any

from django.db import models
from django.db.models.expressions import Func

from redis_queue.times import from_ms, to_ms


class Document(models.TextField):
    """JSON as the text that Python wrote.

    The JSON type of PostgreSQL sorts keys, makes integers of large floats, and refuses strings with a zero byte.
    """

    def from_db_value(self, value: str | None, *_: Any) -> Any:
        """Return what was saved."""
        return None if value is None else json.loads(value)

    def get_prep_value(self, value: Any) -> str:
        """Return ASCII, which every character set of a database has."""
        return json.dumps(value, allow_nan=False, separators=(",", ":"))


class Moment(models.BigIntegerField):
    """An aware datetime as milliseconds since the epoch, rounded up: the same with USE_TZ and without."""

    def from_db_value(self, value: int | None, *_: Any) -> datetime | None:
        """Return it in UTC."""
        return None if value is None else from_ms(value)

    def get_prep_value(self, value: datetime) -> int:
        """Return the milliseconds."""
        return to_ms(value)


class ServerTime(Func):
    """Current time in milliseconds since the epoch, by the database server's clock; with SQLite by this host's."""

    output_field = models.BigIntegerField()

    def as_sql(self, *_: Any, **__: Any) -> Any:
        """Use the clock of this host."""
        return "%s", [time.time_ns() // 1_000_000]

    def as_postgresql(self, *_: Any, **__: Any) -> Any:
        """Use the clock of the server, not the beginning of the transaction."""
        return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS bigint)", []


class Stamp(Moment):
    """Time at which the row was written, by the clock of the database."""

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        """Return the current time for a new row without one."""
        value = super().pre_save(model_instance, add)
        return ServerTime() if add and value is None else value
