"""Changes of what people have set for limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from celery_delayq.errors import InvalidLimit
from celery_delayq.integration.send_task import importable_tasks
from celery_delayq.model.limits import Definition, Limit
from celery_delayq.model.limits.of_app import limits_of
from celery_delayq.model.scheduled import Outcome
from celery_delayq.store.session import Session
from celery_delayq.store.stores import Stores
from celery_delayq.store.task_limits import StoredLimit
from celery_delayq.utils.text import did_you_mean, is_utf8, percent

#: The override that switches a limit off.
_OFF = "none"

#: What the code says of a limit, what people have set, and whether it is off.
Definitions = tuple[Definition | None, Definition | None, bool]


class LimitChanges:
    """Changes limits for all workers, at once.

    A change may have *seen* the definitions of its limit: then it is made only if the write finds
    the same definitions.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def stored(self, name: str) -> StoredLimit:
        """Return the definitions of a limit; those of the app's code if Redis has none.

        Raises
        ------
        InvalidLimit
            Neither Redis nor the app has a limit of this name.
        """
        found = self._session.ask(definitions_in)
        is_text = isinstance(name, str) and is_utf8(name)
        if not is_text or percent(name) not in found:
            for each, text in self._of_app().items():
                found.setdefault(each, StoredLimit(of_code=text))
        if not is_text or percent(name) not in found:
            known = sorted(map(unquote, found))
            shown = ", ".join(known[:10]) or "none"
            raise InvalidLimit(
                f"no limit {name!r} in Redis or in the app; there are: {shown}"
                f"{did_you_mean(str(name), known)}"
            )
        return found[percent(name)]

    def set(
        self, name: str, given: Mapping[str, Any], *, seen: Definitions | None = None
    ) -> Outcome:
        """Set options of a limit; the others stay as they are.

        Parameters
        ----------
        given : Mapping[str, Any]
            Options of :class:`~celery_delayq.model.limits.Limit` by name; at least one.
        seen : Definitions | None
            The definitions that the limit must have; None for any.

        Returns
        -------
        Outcome
            ``DONE``; ``CHANGED`` if the definitions are not those that were seen.

        Raises
        ------
        InvalidLimit
            Neither Redis nor the app has a limit of this name, a value is invalid, or
            ``concurrency`` cannot hold, since a task of this app acknowledges early.
        """
        return self._write(name, lambda before: self._changed(name, before, given).text, seen)

    def switch_off(self, name: str, *, seen: Definitions | None = None) -> Outcome:
        """Limit nothing. *seen*, outcomes and errors are those of :meth:`set`."""
        return self._write(name, lambda _: _OFF, seen)

    def forget(self, name: str, *, code: bool = False, seen: Definitions | None = None) -> Outcome:
        """Forget what people have set, and with *code* also what the code says.

        Parameters
        ----------
        seen : Definitions | None
            The definitions that the limit must have; None for any.

        Returns
        -------
        Outcome
            ``DONE``; ``UNKNOWN`` if nothing was stored; ``CHANGED`` if the definitions are not
            those that were seen.

        Raises
        ------
        InvalidLimit
            Neither Redis nor the app has a limit of this name, or *code* is given and the app's
            code has the limit.
        """
        is_stored = False

        def no_override(before: StoredLimit) -> str:
            nonlocal is_stored  # a call that is repeated after a lost reply finds nothing more
            if code and percent(name) in self._of_app():
                raise InvalidLimit(
                    f"limit {name!r}: the code of this app has it, so workers store it again; "
                    "remove it from the code first, or set off=True (limits set --off) to limit "
                    "nothing"
                )
            is_stored |= bool(before.override or (code and before.of_code))
            return ""

        outcome = self._write(name, no_override, seen, forgets_code=code)
        return Outcome.UNKNOWN if outcome is Outcome.DONE and not is_stored else outcome

    def _write(
        self,
        name: str,
        override: Callable[[StoredLimit], str],
        seen: Definitions | None,
        *,
        forgets_code: bool = False,
    ) -> Outcome:
        """Store what *override* returns for the definitions that the write finds."""
        known, outcome = self.stored(name), Outcome.DONE
        written: str | None = None

        def change(before: StoredLimit) -> str | None:
            nonlocal outcome, written
            # What the code says may be in other stores only, or in the app's code.
            all_known = before._replace(of_code=before.of_code or known.of_code)
            # The reply to an earlier attempt may have been lost.
            if seen not in (None, definitions_of(all_known)) and before.override != written:
                outcome = Outcome.CHANGED
                return None
            written = override(all_known)
            return written

        self._session.ask(
            lambda stores: stores.change_limit(percent(name), change, forgets_code=forgets_code)
        )
        return outcome

    def _of_app(self) -> dict[str, str]:
        """Return the definitions of the app's code."""
        app = self._session.app
        return limits_of(app).definitions(importable_tasks(app))

    def _changed(self, name: str, stored: StoredLimit, given: Mapping[str, Any]) -> Definition:
        """Return what counts, with changes."""
        before = Definition.parse(stored.override) or Definition.parse(stored.of_code)
        before = before or Definition(0.0, 1, 0, False)
        values = {
            "rate": before.rate,
            "burst": before.burst,
            "concurrency": before.concurrency or None,
            "fair": before.fair,
        } | {**given}
        if values["rate"] is None and "burst" not in given:
            values["burst"] = 1  # a burst needs a rate
        if [*values.values()] == [None, 1, None, False]:
            raise InvalidLimit(f"limit {name!r}: nothing would be limited; off=True does that")
        changed = Limit(name, **values).definition
        if "rate" not in given:  # the text of a rate may be rounded
            changed = changed._replace(interval_us=before.interval_us)
        if changed.concurrency:
            self._check_late_acks(name, changed.concurrency)
        return changed

    def _check_late_acks(self, name: str, concurrency: int) -> None:
        app = self._session.app
        for task in limits_of(app).of_tasks(importable_tasks(app)).values():
            if task.limit.name == name and not task.task.acks_late:
                raise InvalidLimit(
                    f"task {task.name} acknowledges when it starts, so concurrency={concurrency} "
                    f"of limit {name!r} cannot hold; set acks_late=True at the task, or "
                    "DelayQ(app, at_least_once=True)"
                )


def definitions_of(stored: StoredLimit) -> Definitions:
    """Return the definitions of a limit, parsed."""
    override = Definition.parse(stored.override)
    # Of the texts that are stored, only the one for "off" has no definition.
    is_off = bool(stored.override) and override is None
    return Definition.parse(stored.of_code), override, is_off


def definitions_in(stores: Stores) -> dict[str, StoredLimit]:
    """Return all limits by their names, percent-encoded.

    What people have set is in the first store, and the others follow it. The code's definition may
    be in some stores only: it is that of the first one with any.
    """
    found: dict[str, StoredLimit] = {}
    for store in stores:
        for name, each in store.task_limits.definitions().items():
            known = found.setdefault(name, each if store is stores.common else StoredLimit())
            found[name] = known._replace(of_code=known.of_code or each.of_code)
    return found
