"""``redis-queue terminate``: stop running tasks."""

from __future__ import annotations

from redis_queue.cli.actions import only_ids, rows_command
from redis_queue.operate.actions.registry import ACTIONS

terminate = rows_command(ACTIONS["running", "terminate"], only_ids, scope=lambda _access, _values: {})
