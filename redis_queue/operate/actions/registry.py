"""The registry of actions, and the verbs that a user may be permitted, one by one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from redis_queue.basics.options import did_you_mean
from redis_queue.errors import ConfigurationError, InvalidValueError
from redis_queue.operate.actions import entries, failures, flows, messages, queues, schedules, tasks, workers
from redis_queue.operate.actions.action import Action

PERMISSIONS: Final = {
    "cancel": "cancel scheduled tasks",
    "reschedule": "change the due time of scheduled tasks",
    "run-now": "make scheduled tasks due at once",
    "redrive": "deliver dead letters again",
    "delete": "delete dead letters, failures and chosen messages",
    "retry": "send failed tasks again, also with other arguments",
    "move": "move messages to another Celery queue",
    "purge": "delete all messages of a Celery queue",
    "pause": "pause a RedisQueue",
    "resume": "resume a paused RedisQueue",
    "putback": "put back messages whose leases have expired",
    "flow-pause": "pause a flow or a Celery queue",
    "flow-resume": "resume a paused flow or Celery queue",
    "flow-set": "change the limits and rates of a flow",
    "flow-reset": "put the limits of a flow in the code in force again",
    "schedule-put": "store and change schedules of periodic tasks",
    "schedule-pause": "pause a schedule",
    "schedule-resume": "resume a paused schedule",
    "schedule-run": "send a run of a schedule at once",
    "schedule-delete": "delete a schedule",
    "schedule-backfill": "send runs of a schedule that were due in the past",
    "unique-release": "free the key of a unique task",
    "terminate": "terminate running tasks",
    "stop": "stop tasks that match, wherever they are: cancel, delete, revoke and terminate them",
    "shutdown": "shut down workers",
    "resize": "change the number of processes of workers",
    "clear": "remove lost workers from the list",
}
"""What each verb permits."""


ACTIONS: Final[dict[tuple[str, str], Action]] = {
    (action.target.name, action.verb): action
    for module in (entries, failures, messages, queues, flows, schedules, workers, tasks)
    for action in module.ACTIONS
}
"""Every action, by the name of its target and its verb."""


def action_of(target: str, verb: str) -> Action:
    """Return an action; raises InvalidValueError for an unknown one."""
    found: Action | None = ACTIONS.get((target, verb))
    if found is None:
        verbs = [known for name, known in ACTIONS if name == target]
        raise InvalidValueError(f"verb={verb[:60]!r}: must be one of {', '.join(verbs)}")
    return found


def check_verbs(name: str, verbs: Collection[str]) -> frozenset[str]:
    """Return *verbs*; raises ConfigurationError, beginning with *name*, for unknown ones."""
    if isinstance(verbs, str) or not isinstance(verbs, Collection):
        raise ConfigurationError(f"{name}={verbs!r}: must be a list of verbs, such as ('retry', 'delete')")
    for verb in verbs:
        if not isinstance(verb, str) or verb not in PERMISSIONS:
            raise ConfigurationError(f"{name}={verb!r}: unknown verb, {did_you_mean(str(verb), PERMISSIONS)}")
    return frozenset(verbs)
