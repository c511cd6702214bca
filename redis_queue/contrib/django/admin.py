"""Schedules in Django's admin: a section of its own, whose rows are in the store and not in a table.

The form and all changes come from the registry of actions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, ClassVar, Final

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.urls import reverse
from django.utils.formats import localize
from django.utils.timezone import get_current_timezone, template_localtime

from redis_queue.contrib.django import celery_app
from redis_queue.contrib.django.models import Schedule
from redis_queue.errors import InvalidValueError, RedisQueueError
from redis_queue.operate.access import AppAccess
from redis_queue.operate.actions.action import Action, Argument, Choice, Plan, Result, perform
from redis_queue.operate.actions.registry import action_of
from redis_queue.operate.actions.schedules import PUT, put_texts
from redis_queue.operate.schedules import ScheduleList, ScheduleRow, definition_fields, find_row, with_events

PAGE: Final = 100

SHOWN: Final = 10
"""Number of next and of last runs."""


def _access() -> AppAccess:
    return AppAccess(celery_app())


def _plan(verb: str, name: str, arguments: Mapping[str, Any] | None = None) -> tuple[Action, Plan]:
    action = action_of("schedule", f"schedule-{verb}")
    return action, action.target.plan(action, _access(), Choice({"name": name}, arguments or {}))


class _ArgumentField(forms.CharField):
    """A text that an argument of an action reads."""

    def __init__(self, argument: Argument) -> None:
        area = forms.Textarea(attrs={"rows": 1 + argument.most // 1000, "cols": 60})
        required, most = bool(argument.missing), argument.most
        super().__init__(required=required, max_length=most, help_text=argument.help, widget=area)
        self.argument = argument

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        try:
            return self.argument.value(text, get_current_timezone()) if text else None
        except RedisQueueError as error:
            raise forms.ValidationError(str(error)) from error


_ArgumentFields: Any = type(forms.Form)("Fields", (forms.Form,), {each.name: _ArgumentField(each) for each in PUT})


class _ScheduleForm(forms.ModelForm, _ArgumentFields):
    """The name of a schedule, and the arguments that put it; the errors are those of the plan."""

    class Meta:
        model = Schedule
        fields: ClassVar = ["name"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        row = self.instance.row
        self.initial |= put_texts(row.schedule.definition) if row and not row.error else {}

    def clean(self) -> Any:
        values, name = self.cleaned_data, self.cleaned_data.get("name", self.instance.name)
        try:
            if "name" in values and _access().schedules.get(name) is not None:
                raise InvalidValueError(f"there is a schedule {name!r}: change that one, or choose another name")
            self.put = None if self.errors else _plan("put", name, values)
        except RedisQueueError as error:
            raise forms.ValidationError(str(error)) from error
        return values

    def validate_unique(self) -> None:
        """Do nothing: there is no table."""


class _Rows(QuerySet[Any]):
    """The schedules in the store, those first that are sent next; filtered, those with the names ``pk__in``."""

    ordered = True
    _result_cache: Any

    def _fetch_all(self) -> None:
        self._result_cache = self[:PAGE] if self._result_cache is None else self._result_cache

    def _clone(self) -> _Rows:
        return self

    def __getitem__(self, part: Any) -> Any:
        access, start = _access(), part.start or 0
        rows = ScheduleList(access).page(start, part.stop - start).items
        return list(map(Schedule.of, with_events(access, rows)))

    def count(self) -> int:
        return _access().schedules.store.count() if self._result_cache is None else len(self._result_cache)

    def order_by(self, *_: Any) -> _Rows:
        return self

    def filter(self, *_: Any, **conditions: Any) -> _Rows:
        if "pk__in" not in conditions:
            return self
        found, access = _Rows(Schedule), _access()
        stored = access.schedules.store.get(list(conditions["pk__in"])[:PAGE])
        found._result_cache = [Schedule.of(ScheduleRow.of(access, one)) for one in stored if one is not None]
        return found


def _time(at: datetime | None) -> str:
    return "-" if at is None else str(localize(template_localtime(at)))


def _runs(row: ScheduleRow, most: int) -> str:
    return "\n".join(f"{_time(run.due)} {run.outcome or ''}".strip() for run in row.runs[:most])


def _definition(row: ScheduleRow) -> str:
    fields = definition_fields(row.schedule.definition, with_body=False)
    return "\n".join(f"{label}: {text}" for label, text in fields.items() if text)


def _next_runs(row: ScheduleRow) -> str:
    return row.error or "\n".join(map(_time, _access().schedules.next_runs(row.name, SHOWN)))


def _column(head: str, text: Callable[[ScheduleRow], Any]) -> Callable[[Any], Any]:
    return admin.display(description=head)(lambda it: text(it.row) or "-")  # type: ignore[no-any-return]


def _field(name: str) -> Callable[[Any], Any]:
    return _column(name.replace("_", " "), lambda row: row.document[name])


def _action(verb: str) -> Any:
    def act(model_admin: Any, request: HttpRequest, queryset: Any) -> None:
        model_admin.perform_each(request, verb, queryset)

    act.__name__ = verb
    return admin.action(description=action_of("schedule", f"schedule-{verb}").label, permissions=["change"])(act)


def _with_errors(view: Callable[..., Any]) -> Callable[..., Any]:
    """Return a view that shows errors of the store as messages of the admin's first page."""

    @functools.wraps(view)
    def shown(self: Any, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        try:
            response = view(self, request, *args, **kwargs)
            return response.render() if hasattr(response, "render") else response
        except RedisQueueError as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(reverse(f"{self.admin_site.name}:index"))

    return shown


@admin.register(Schedule)
class _ScheduleAdmin(admin.ModelAdmin):
    """List, form and actions of the schedules of ``REDIS_QUEUE["CELERY_APP"]``."""

    form = _ScheduleForm
    list_display = (
        *("name", *map(_field, ("task", "rules", "timezone", "next_run", "state", "pause_ends", "error"))),
        _column("last run", lambda row: _runs(row, 1)),
    )
    shown = _column("next runs", _next_runs), _column("last runs", lambda row: _runs(row, SHOWN)), _field("state")
    list_per_page = list_max_show_all = PAGE
    sortable_by: ClassVar = ()
    actions: ClassVar = [_action(verb) for verb in ("pause", "resume", "run")]
    actions_selection_counter = False
    changelist_view = _with_errors(admin.ModelAdmin.changelist_view)
    changeform_view = _with_errors(admin.ModelAdmin.changeform_view)
    delete_view = _with_errors(admin.ModelAdmin.delete_view)

    def get_queryset(self, _: HttpRequest) -> _Rows:
        return _Rows(Schedule)

    def get_object(self, _: HttpRequest, object_id: str, *__: Any) -> Any:
        try:
            return Schedule.of(find_row(_access(), object_id))
        except InvalidValueError:
            return None

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return the fields of the form; those who may not change it see the definition instead."""
        is_form = obj is None or self.has_change_permission(request, obj)
        return (
            super().get_fields(request, obj) if is_form else ("name", _column("definition", _definition), *self.shown)
        )

    def get_readonly_fields(self, _: HttpRequest, obj: Any = None) -> Any:
        return () if obj is None else ("name", *self.shown)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the user may change *obj*; the code of the app changes one of ``beat_schedule``."""
        is_static = obj is not None and obj.row is not None and obj.row.schedule.static
        return bool(super().has_change_permission(request, obj)) and not is_static

    def save_model(self, request: HttpRequest, _: Any, form: Any, __: Any) -> None:
        self.perform(request, *form.put)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        self.perform(request, *_plan("delete", obj.name))

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        for schedule in queryset:
            self.delete_model(request, schedule)

    def get_deleted_objects(self, objs: Any, _: HttpRequest) -> Any:
        return list(map(str, objs)), {self.opts.verbose_name_plural: len(objs)}, set(), []

    def perform(self, request: HttpRequest, action: Action, plan: Plan) -> None:
        total = Result()
        perform(_access(), action, plan, request.user.get_username(), total)
        unwritten = [f"not written to the audit: {total.unwritten}"] if total.unwritten else []
        for warning in [*plan.warnings, *unwritten]:
            self.message_user(request, warning, messages.WARNING)

    def perform_each(self, request: HttpRequest, verb: str, queryset: Any) -> None:
        done = 0
        for schedule in queryset:
            try:
                self.perform(request, *_plan(verb, schedule.name))
                done += 1
            except RedisQueueError as error:
                self.message_user(request, f"{schedule.name}: {error}", messages.ERROR)
        if done:
            self.message_user(request, f"{verb}: {done} done", messages.SUCCESS)
