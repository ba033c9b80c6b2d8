"""Periodic entries in code: ``beat_schedule`` and ``add_periodic_task``.

Workers write them when they start. While several versions of the code run side by side, the one
that came last counts: what an older one finds changed, it leaves so, until the newer one is gone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from functools import partial
from hashlib import blake2b
from typing import Any

from celery import Celery
from celery.backends.base import DisabledBackend
from celery.beat import ScheduleEntry
from celery.schedules import crontab, maybe_schedule

from celery_delayq import periodic
from celery_delayq.definitions import Definition, edition_of, source_in
from celery_delayq.errors import ConfigError, DelayQError
from celery_delayq.periodic import Periodic
from celery_delayq.periodic_store import Deploy, PeriodicStore, Writing
from celery_delayq.pipeline import LOST
from celery_delayq.store import Store

logger = logging.getLogger(__name__)

#: Seconds after which a version says again that it is about, and for which it counts as being so.
KEEP = 20.0
ALIVE = 60.0

#: What entries in code may say beside what beat knows.
OURS = ("timezone", "start", "end", "max_runs", "catch_up", "catch_up_max", "overlap")

#: What beat keeps in an entry, and here has its place in Redis.
_IGNORED = frozenset({"name", "app", "last_run_at", "total_run_count"})


def source_of(app: Celery) -> str:
    """Return the source of the entries in the code of an app."""
    return f"code {app.main or ''}".strip()


def definitions_of(app: Celery) -> Iterator[tuple[str, Definition | DelayQError]]:
    """Yield name and definition of each entry in code, or what is wrong with it."""
    given = dict(app.conf.beat_schedule or {})
    keeps_results = not isinstance(app.backend, DisabledBackend)
    if keeps_results and app.conf.result_expires and not app.backend.supports_autoexpire:
        # As beat has it.
        given.setdefault(
            "celery.backend_cleanup",
            {
                "task": "celery.backend_cleanup",
                "schedule": crontab("0", "4", "*"),
                "options": {"expires": 12 * 3600},
            },
        )
    for name, entry in given.items():
        try:
            yield name, definition_of(str(name), entry, source_of(app))
        except DelayQError as exc:
            yield name, exc
        except Exception as exc:  # entries are anybody's
            yield name, ConfigError(f"{type(exc).__name__}: {exc}")


def definition_of(name: str, entry: Any, source: str) -> Definition:
    """Return the definition of an entry as ``beat_schedule`` has it.

    Raises
    ------
    ConfigError
        It is none that can be kept and fired.
    """
    if isinstance(entry, ScheduleEntry):
        entry = {
            each: getattr(entry, each) for each in ("task", "schedule", "args", "kwargs", "options")
        }
    if not isinstance(entry, Mapping):
        raise ConfigError(f"expected a mapping with task and schedule, got {entry!r}")
    fields = {what: value for what, value in entry.items() if what not in _IGNORED}
    options = fields.pop("options", None) or {}
    if not isinstance(options, Mapping):
        raise ConfigError(f"options={options!r}: expected a mapping by names")
    options = dict(options)
    given = {what: options.pop(what) for what in OURS if what in options}
    relative = fields.pop("relative", False)
    schedule = fields.pop("schedule", None)
    known = {"task", "args", "kwargs", *OURS}
    if unknown := sorted(str(what) for what in fields if what not in known):
        raise ConfigError(
            f"unknown: {', '.join(unknown)}; valid are: "
            f"{', '.join(sorted({*known, 'schedule', 'options', 'relative'}))}"
        )
    if relative:
        schedule = maybe_schedule(schedule, relative)
    given |= {what: value for what, value in fields.items() if value is not None}
    return Definition.checked(
        schedule, **{"task": "", **given, "name": name, "options": options, "source": source}
    )


class Deployment:
    """The entries in the code of an app, as one process has them."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._source = source_of(app)
        self._definitions: dict[str, Definition] = {}
        self._version = ""
        self._since: int | None = None
        self._kept = float("-inf")

    def keep(self, store: Store) -> None:
        """Say now and then that these are about, and write them if they count and are not there.

        Raises
        ------
        redis.exceptions.RedisError
            Redis is away, or refused something.
        """
        if time.monotonic() - self._kept < KEEP:
            return
        first, self._kept = self._kept < 0, time.monotonic()
        try:
            self._keep(store, first)
        except LOST:
            self._kept = float("-inf")
            raise

    def _keep(self, store: Store, first: bool) -> None:
        if not self._version:
            self._read()
        deploy = self._deploy(store)
        self._since = deploy.since
        if deploy.counts != self._version:
            if first:
                logger.info("Periodic entries stay as a newer version of the code has them")
        elif deploy.written != self._version:
            self._write(store)

    def _deploy(self, store: Store, written: bool | None = None) -> Deploy:
        alive = int(ALIVE * 1000)
        gate = PeriodicStore(store)
        return gate.deploy(self._source, self._version, self._since, alive, written=written)

    def _read(self) -> None:
        for name, found in definitions_of(self._app):
            if isinstance(found, Definition):
                self._definitions[name] = found
            else:
                logger.error("Periodic entry %r in code is left out: %s", name, found)
        hashed = blake2b(digest_size=8)
        for name, definition in sorted(self._definitions.items()):
            hashed.update(f"{name}\0{definition.dumps()}\0".encode())
        self._version = hashed.hexdigest()

    def _write(self, store: Store) -> None:
        """Write what is new or changed, and remove what is in code no more."""
        gate = PeriodicStore(store)
        now = store.now_ms()
        gone = [
            name
            for name, record in gate.all()
            if name not in self._definitions and _source_in(record) == self._source
        ]
        told = {"written": 0, "removed": 0}
        for what, names, edit in (
            ("removed", gone, self._removed),
            ("written", [*self._definitions], partial(self._written, now)),
        ):
            for changed in gate.edit_many(names, edit):
                told[what] += changed
                if self._deploy(store).counts != self._version:
                    # A newer version came meanwhile, and may have been written before this.
                    self._deploy(store, written=False)
                    return
        self._deploy(store, written=True)
        if any(told.values()):
            logger.info(
                "Periodic entries in code: %s",
                ", ".join(f"{count} {what}" for what, count in told.items() if count),
            )

    def _written(self, now: int, name: str, there: str | None) -> Writing | None:
        try:
            return self._edited(self._definitions[name], there, now)
        except Exception as exc:  # schedules are anybody's
            logger.error("Periodic entry %r in code is left out: %s", name, exc)
            return None

    def _removed(self, name: str, there: str | None) -> Writing | None:
        if there is None or _source_in(there) != self._source:
            return None
        return Writing(name, there.partition("\n")[0], "")

    def _edited(self, new: Definition, there: str | None, now: int) -> Writing | None:
        zone = self._app.timezone
        if there is None:
            entry = periodic.begin(new, now, zone)
            return Writing(new.name, "", entry.pack(), entry.look)
        line = there.partition("\n")[0]
        if _source_in(there) != self._source:
            logger.warning(
                "Periodic entry %r in code is left out: there is one of that name that was not "
                "made by this code; give one of them another name",
                new.name,
            )
            return None
        try:
            old = Periodic.unpack(new.name, there)
        except DelayQError:
            entry = periodic.begin(new, now, zone)  # another version of the code made it
        else:
            if old.standing.edition == edition_of(new):
                return None
            entry = periodic.change(old, new, now, zone)
        return Writing(new.name, line, entry.pack(), entry.look)


def _source_in(record: str) -> str | None:
    """Return the source that a record names, also where its schedule is not known here."""
    return source_in(record.partition("\n")[2])
