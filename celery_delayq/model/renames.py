"""Former names of tasks: as which task a message of a former name runs. No I/O."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from celery import Celery

from celery_delayq.errors import ConfigError
from celery_delayq.utils.text import is_utf8

#: The attribute of an app with its :class:`Renames`.
_RENAMES = "_delayq_renames"

_EXPECTED_TEXT = "expected the names of tasks by their former names, such as {'shop.old': 'shop.new'}"


class Renames:
    """The former names of an app's tasks.

    Parameters
    ----------
    given : Mapping[str, str] | None
        Names of tasks by their former names. A name that is itself a former name is followed.

    Raises
    ------
    ConfigError
        A name is empty or no text, or names lead in a circle.
    """

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        if given is None:
            given = {}
        if not isinstance(given, Mapping):
            raise ConfigError(f"renamed={given!r}: {_EXPECTED_TEXT}")
        for former, name in given.items():
            for each in (former, name):
                if not isinstance(each, str) or not each or not is_utf8(each):
                    raise ConfigError(f"renamed={{{former!r}: {name!r}}}: {_EXPECTED_TEXT}")
        #: The name of the task by each former name.
        self.by_former_name = {former: _last_name(given, former) for former in given}
        self._former_names: dict[str, tuple[str, ...]] = {}
        for former, name in self.by_former_name.items():
            self._former_names[name] = (*self._former_names.get(name, ()), former)

    def __bool__(self) -> bool:
        return bool(self.by_former_name)

    def of(self, name: str) -> str:
        """Return the name of the task as which messages of *name* run."""
        return self.by_former_name.get(name, name)

    def former_names(self, name: str) -> tuple[str, ...]:
        """Return the former names of a task; a former name has none."""
        return self._former_names.get(name, ())

    def names(self, name: str) -> tuple[str, ...]:
        """Return a name, and its former names."""
        return (name, *self.former_names(name))

    def with_former_names(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values by the names of tasks, and the same values by the former names."""
        found = dict(values)
        for former, name in self.by_former_name.items():
            if name in values:
                found[former] = values[name]
        return found

    def check_former(self, tasks: Container[str]) -> None:
        """Raise ConfigError if an app has a task with a former name."""
        for former, name in self.by_former_name.items():
            if former in tasks:
                raise ConfigError(
                    f"renamed={{{former!r}: {name!r}}}: the app has a task {former!r}, so its "
                    f"messages cannot run as {name!r}; delete the task, or this entry of renamed"
                )

    def check_tasks(self, tasks: Iterable[str]) -> None:
        """Raise ConfigError if an app has a former name as a task, or lacks the task of one."""
        known = {*tasks}
        self.check_former(known)
        for former, name in self.by_former_name.items():
            if name not in known:
                raise ConfigError(
                    f"renamed={{{former!r}: {name!r}}}: the app has no task {name!r}; give the "
                    "name of a task of this app"
                )

    def share(self, app: Celery) -> None:
        """Make these the former names of the tasks of *app*."""
        setattr(app, _RENAMES, self)


#: No task has a former name.
NO_RENAMES = Renames()


def renames_of(app: Celery) -> Renames:
    """Return the former names of the tasks of an app."""
    found: Renames = getattr(app, _RENAMES, NO_RENAMES)
    return found


def _last_name(given: Mapping[str, str], former: str) -> str:
    """Return the name to which a former name leads; raises ConfigError for a circle."""
    path = [former]
    while path[-1] in given:
        name = given[path[-1]]
        if name in path:
            circle = " → ".join(map(repr, [*path, name]))
            raise ConfigError(f"renamed: the names lead in a circle, {circle}")
        path.append(name)
    return path[-1]
