"""Schedules in Django's admin: a section of its own, whose rows are in the store and not in a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, ClassVar, Final

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.formats import localize
from django.utils.html import format_html_join
from django.utils.timezone import template_localtime

from redis_queue.celery.schedules.schedules import Schedules
from redis_queue.contrib.django import celery_app
from redis_queue.contrib.django.models import Schedule
from redis_queue.contrib.django.schedule_form import ScheduleForm, values_of
from redis_queue.errors import InvalidValueError, RedisQueueError
from redis_queue.operate.access import AppAccess
from redis_queue.operate.actions.action import Action, Result, perform
from redis_queue.operate.actions.queues import One, one_step

PAGE: Final = 100
NEXT_RUNS: Final = 10


def act(request: HttpRequest, verb: str, name: str, change: Callable[[Schedules], object]) -> None:
    """Make *change* of the schedule *name*, with a line in the audit. Raises InvalidValueError and StoreError."""
    app, user = celery_app(), request.user
    action = Action(One("schedule"), verb, verb, verb, change)
    plan = one_step(f"{verb} {name}", name, lambda: change(Schedules(app)), "")
    perform(AppAccess(app), action, plan, user.get_username(), Result())


class Rows(QuerySet[Any]):
    """Schedules that were read from the store."""

    def __init__(self, found: Iterable[Any] = ()) -> None:
        super().__init__(Schedule)
        self._result_cache = list(found)

    def _clone(self) -> Rows:
        return Rows(self._result_cache)

    def filter(self, *_: Any, **conditions: Any) -> Rows:
        """Return the schedules with the names ``pk__in``."""
        schedules = Schedules(celery_app())
        names = list(conditions["pk__in"])[:PAGE]
        return Rows(Schedule.of(found) for name in names if (found := schedules.get(name)) is not None)


class Page(ChangeList):
    """A page of the list, in the order in which the schedules are sent next."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Rows:  # noqa: ARG002
        """Return no rows; an action chooses its own by their names."""
        return Rows()

    def get_results(self, request: HttpRequest) -> None:  # noqa: ARG002 - Django's signature
        """Read the page."""
        schedules = Schedules(celery_app())
        self.result_count = self.full_result_count = schedules.store.count()
        self.paginator = Paginator(range(self.result_count), PAGE)
        offset = self.paginator.get_page(self.page_num).start_index() - 1
        self.result_list = Rows(map(Schedule.of, schedules.list(offset=max(0, offset), limit=PAGE)))
        self.show_full_result_count, self.show_admin_actions = True, bool(self.result_count)
        self.can_show_all, self.multi_page = False, self.result_count > PAGE


@admin.register(Schedule)
class ScheduleAdmin(admin.ModelAdmin):
    """List, form and actions of the schedules of ``REDIS_QUEUE["CELERY_APP"]``."""

    form = ScheduleForm
    list_display = ("name", "task_name", "rules_text", "zone", "next_run", "last_run", "state")
    sortable_by: ClassVar = ()
    actions = ("pause", "resume", "run_now")
    actions_selection_counter = False

    def get_queryset(self, request: HttpRequest) -> Rows:  # noqa: ARG002 - Django's signature
        """Return no rows: the list reads its page itself."""
        return Rows()

    def get_changelist(self, request: HttpRequest, **_: Any) -> type[Page]:  # noqa: ARG002
        """Return the list that reads the store."""
        return Page

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:  # noqa: ARG002
        """Return the schedule *object_id*, or None. Values that nobody may change are shown from its attributes."""
        try:
            found = Schedules(celery_app()).get(object_id)
        except InvalidValueError:
            return None
        if found is None:
            return None
        row = Schedule.of(found)
        if found.definition is not None:
            for name, value in values_of(found.definition).items():
                setattr(row, name, value)
        return row

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:  # noqa: ARG002
        """Return what the form only shows."""
        return () if obj is None else ("name", "state", "next_runs", "last_runs")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the user may change *obj*; the code of the app changes one of ``beat_schedule``."""
        is_static = obj is not None and obj.stored is not None and obj.stored.static
        return bool(super().has_change_permission(request, obj)) and not is_static

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: Any) -> None:  # noqa: ARG002
        """Put the schedule."""
        act(request, "put", obj.name, lambda schedules: schedules.put_definition(form.definition))

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        """Delete the schedule."""
        act(request, "delete", obj.name, lambda schedules: schedules.delete(obj.name))

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        """Delete the chosen schedules."""
        for row in queryset:
            self.delete_model(request, row)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:  # noqa: ARG002
        """Return the names: nothing else is deleted with them."""
        return list(map(str, objs)), {self.opts.verbose_name_plural: len(objs)}, set(), []

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the list, or carry out an action."""
        return self._view(request, lambda: super(ScheduleAdmin, self).changelist_view(request, extra_context))

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Show the form, or store what it says."""
        return self._view(request, lambda: super(ScheduleAdmin, self).changeform_view(request, *args, **kwargs))

    def delete_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Ask, or delete."""
        return self._view(request, lambda: super(ScheduleAdmin, self).delete_view(request, *args, **kwargs))

    def _view(self, request: HttpRequest, view: Callable[[], Any]) -> Any:
        """Return the page, or that of the admin with the error of the store."""
        try:
            response = view()
            return response.render() if hasattr(response, "render") else response
        except RedisQueueError as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(reverse(f"{self.admin_site.name}:index"))

    def _each(self, request: HttpRequest, verb: str, rows: Any, change: Callable[[Schedules, str], object]) -> None:
        done = 0
        for row in rows:
            try:
                act(request, verb, row.name, lambda schedules, name=row.name: change(schedules, name))  # type: ignore[misc]
                done += 1
            except RedisQueueError as error:
                self.message_user(request, f"{row.name}: {error}", messages.ERROR)
        if done:
            self.message_user(request, f"{verb}: {done} done", messages.SUCCESS)

    @admin.action(description="Pause", permissions=["change"])
    def pause(self, request: HttpRequest, queryset: Any) -> None:
        """Send no more runs."""
        self._each(request, "pause", queryset, lambda schedules, name: schedules.pause(name))

    @admin.action(description="Resume", permissions=["change"])
    def resume(self, request: HttpRequest, queryset: Any) -> None:
        """End the pause."""
        self._each(request, "resume", queryset, lambda schedules, name: schedules.resume(name))

    @admin.action(description="Run now", permissions=["change"])
    def run_now(self, request: HttpRequest, queryset: Any) -> None:
        """Send a run at once."""
        self._each(request, "run", queryset, lambda schedules, name: schedules.run_now(name))

    @admin.display(description="task")
    def task_name(self, obj: Any) -> str:
        """The task."""
        return str(obj.stored.task)

    @admin.display(description="rules")
    def rules_text(self, obj: Any) -> str:
        """The rules, or why they cannot be read."""
        return str(obj.stored.rules or obj.stored.error)

    @admin.display(description="time zone")
    def zone(self, obj: Any) -> str:
        """The time zone."""
        return str(obj.stored.timezone)

    @admin.display(description="next run")
    def next_run(self, obj: Any) -> str:
        """The next due time."""
        return _time(obj.stored.next_run)

    @admin.display(description="last run")
    def last_run(self, obj: Any) -> str:
        """The last run and its outcome."""
        return next(iter(_runs(obj)), "-")

    @admin.display(description="state")
    def state(self, obj: Any) -> str:
        """Whether it is paused."""
        ends = obj.stored.pause_ends
        return f"paused until {_time(ends)}" if ends else "paused" if obj.stored.paused else ""

    @admin.display(description="next runs")
    def next_runs(self, obj: Any) -> str:
        """The next due times, one in a line."""
        if obj.stored.error:
            return str(obj.stored.error)
        return _lines(map(_time, Schedules(celery_app()).next_runs(obj.name, NEXT_RUNS)))

    @admin.display(description="last runs")
    def last_runs(self, obj: Any) -> str:
        """The last runs, one in a line."""
        return _lines(_runs(obj)[:NEXT_RUNS])


def _runs(row: Any) -> list[str]:
    runs = [] if row.stored.error else Schedules(celery_app()).runs(row.name)
    return [f"{_time(run.due)} {run.outcome or ''}".strip() for run in runs]


def _lines(texts: Iterable[str]) -> str:
    return str(format_html_join("", "{}<br>", ((text,) for text in texts)) or "-")


def _time(at: datetime | None) -> str:
    return "-" if at is None else str(localize(template_localtime(at)))
