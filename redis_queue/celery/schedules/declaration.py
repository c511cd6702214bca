"""Declaration: the ``beat_schedule`` of an app becomes schedules in its store, unless a newer version did so."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from celery import Celery
from celery.schedules import crontab

from redis_queue.basics.logs import logger_of
from redis_queue.basics.options import some_of
from redis_queue.celery.monitor.snapshot import release_of
from redis_queue.celery.schedules.rules import read_rules
from redis_queue.celery.schedules.schedules import Schedules
from redis_queue.celery.settings import CelerySettings
from redis_queue.errors import ConfigurationError, InvalidValueError
from redis_queue.schedules.definition import Definition
from redis_queue.schedules.store import ATTEMPTS, MAX_CHANGES, Change, Stored
from redis_queue.store.chunks import chunks
from redis_queue.store.keys import is_name

logger = logger_of(__name__)

MakeChange = Callable[[Stored | None], Change | None]
"""Returns the change of a schedule as it is stored; None for no change."""

CLEAN_UP: Final = "celery.backend_cleanup"

MAX_REFUSED: Final = 20
"""Maximum number of refused schedules of an app that are stored."""

MAX_WHY: Final = 300
"""Maximum characters of why one is refused."""


@dataclass(frozen=True, slots=True)
class DeclareReport:
    """What a declaration of the static schedules changed; *newer* is the version that is in force instead, if any."""

    changed: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    newer: str = ""


class Declaration:
    """The ``beat_schedule`` of an app as its *schedules*.

    A version of them is the release of the app, if it is known, and the digest of the schedules. It is older than
    another one that was declared first after it, and then changes nothing: a worker of an old release that starts again
    does not undo a newer one. A name that a dynamic schedule or another app has is left alone. Bad entries are left
    out, and named in the report.
    """

    def __init__(self, schedules: Schedules) -> None:
        self._app = schedules.app
        self._schedules = schedules

    def make(self, *, force: bool = False) -> DeclareReport:
        """Store the schedules unless a newer version has; *force*: make this version the newest.

        Raises StoreError, and ConfigurationError if the library that a rule needs is missing.
        """
        definitions, report = self.static()
        # Hosts of one release may have other time zone data.
        texts = [replace(item, tzdata="").text() for item in definitions]
        digest = hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()[:12]
        release = release_of(CelerySettings.of(self._app).release)
        version = f"{release}:{digest}" if release else digest
        app, names = self._schedules.app_name, {item.name for item in definitions}
        for _ in range(ATTEMPTS):
            before, known = self._schedules.store.versions(app)
            versions = known["versions"]
            if version in versions[1:] and not force:
                logger.info(
                    "schedules of version %s are not used: those of %s are newer; for a rollback, run redis-queue "
                    "schedules declare --force",
                    version,
                    versions[0],
                    extra={"action": "schedules_older"},
                )
                return replace(report, newer=versions[0])
            if versions[:1] == [version] and names == set(known["names"]):
                break
            ordered = [version, *(item for item in versions if item != version)]
            if self._schedules.store.set_versions(app, before, ordered, names | set(known["names"])):
                known["names"] = sorted(names | set(known["names"]))
                break
        self._reconcile(definitions, version, sorted(filter(is_name, {*known["names"]} - names)), report)
        before, known = self._schedules.store.versions(app)
        if known["versions"][:1] != [version]:
            return replace(report, newer="".join(known["versions"][:1]))
        # The doctor reads why some were refused.
        refused = {name: why[:MAX_WHY] for name, why in [*report.refused.items()][:MAX_REFUSED]}
        if (set(known["names"]), known["refused"]) != (names, refused):
            self._schedules.store.set_versions(app, before, known["versions"], names, refused)
        return report

    def _reconcile(
        self, definitions: Sequence[Definition], version: str, gone: Sequence[str], report: DeclareReport
    ) -> None:
        """Store *definitions*, and delete the static schedules *gone* of this app."""
        store = self._schedules.store
        stored, now = store.get(definition.name for definition in definitions), store.now()
        changes: dict[str, MakeChange] = {}
        for definition, known in zip(definitions, stored, strict=True):
            if known and known.state and known.definition and known.definition.means_the_same(definition):
                continue
            try:
                changes[definition.name] = self._schedules.putting(replace(definition, version=version), now=now)
            except InvalidValueError as error:
                report.refused[definition.name] = str(error)
        report.changed.extend(self._change(changes, version, report))
        report.deleted.extend(self._change(dict.fromkeys(gone, self._deleted), version, report))
        for name, why in report.refused.items():
            extra = {"action": "schedule_refused"}
            logger.error("schedule %s of beat_schedule is not sent: %s", name, why, extra=extra)
        if report.changed or report.deleted:
            logger.info(
                "schedules of version %s: %s changed, %s deleted",
                version,
                some_of(report.changed, 5) or "none",
                some_of(report.deleted, 5) or "none",
                extra={"action": "schedules_declared"},
            )

    def _change(self, changes: Mapping[str, MakeChange], version: str, report: DeclareReport) -> Iterator[str]:
        """Make *changes*, up to 100 in a step, unless a newer version than *version* was declared; yield what changed.

        Those that cannot be made together with others are tried alone, which tells why.
        """
        for names in chunks(changes, MAX_CHANGES):
            done = self._change_together({name: changes[name] for name in names}, version)
            for name in names:
                try:
                    if name in done or self._change_alone(name, changes[name], version):
                        yield name
                except InvalidValueError as error:
                    report.refused[name] = str(error)

    def _change_together(self, changes: Mapping[str, MakeChange], version: str) -> set[str]:
        store, app = self._schedules.store, self._schedules.app_name
        before, known = store.versions(app)
        if known["versions"][:1] != [version]:
            return set()
        made: list[Change] = []
        for stored, make in zip(store.get(changes), changes.values(), strict=True):
            with suppress(InvalidValueError):
                change = make(stored)
                if change is not None:
                    # The step looks again: a newer version may be declared meanwhile.
                    made.append(replace(change, declared=(app, before)))
        with suppress(InvalidValueError):
            return {change.name for change, flag in zip(made, store.change(made), strict=True) if flag}
        return set()

    def _change_alone(self, name: str, make: MakeChange, version: str) -> bool:
        def unless_newer(stored: Stored | None) -> Change | None:
            change, app = make(stored), self._schedules.app_name
            before, known = self._schedules.store.versions(app)
            # As above; its schedule may be deleted, too.
            return replace(change, declared=(app, before)) if change and known["versions"][:1] == [version] else None

        return self._schedules.store.update(name, unless_newer)

    def _deleted(self, stored: Stored | None) -> Change | None:
        found = None if stored is None else stored.definition
        if stored is None or found is None or not found.static or found.app != self._schedules.app_name:
            return None
        return Change(stored.name, stored.state_text, None)

    def static(self) -> tuple[list[Definition], DeclareReport]:
        """Return the definitions of ``beat_schedule``, and a report of the bad ones. Raises ConfigurationError."""
        report = DeclareReport()
        found: list[Definition] = []
        for name, entry in beat_entries(self._app).items():
            try:
                found.append(self._of_entry(name, entry))
            except ConfigurationError:
                raise
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                report.refused[str(name)] = str(error)
        return found, report

    def _of_entry(self, name: str, entry: Mapping[str, Any]) -> Definition:
        known = {"task", "schedule", "args", "kwargs", "options", "relative"}
        if not isinstance(entry, Mapping) or not {"task", "schedule"} <= entry.keys() <= known | {"name"}:
            raise InvalidValueError(f"{name!r}: must be a mapping with task, schedule, and maybe args, kwargs, options")
        rules = read_rules(entry["schedule"])
        if entry.get("relative"):
            rules = [{**rule, "relative": True} if "every" in rule else rule for rule in rules]
        return self._schedules.definition(
            name,
            entry["task"],
            args=entry.get("args") or (),
            kwargs=entry.get("kwargs"),
            options=entry.get("options") or {},
            rules=rules,
            static=True,
        )


def beat_entries(app: Celery) -> dict[str, Any]:
    """Return the entries that stock beat would have: ``beat_schedule``, and the clean-up of results."""
    entries = dict(app.conf.beat_schedule or {})
    if app.conf.result_expires and not app.backend.supports_autoexpire:
        clean_up = {"task": CLEAN_UP, "schedule": crontab("0", "4", "*"), "options": {"expires": 12 * 3600}}
        entries.setdefault(CLEAN_UP, clean_up)
    return entries
