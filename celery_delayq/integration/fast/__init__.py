"""Every change to Celery, kombu and billiard that serves speed alone, in groups.

``DELAYQ_FAST=0`` in the environment switches all of them off. The variable is read when this
package is imported. To remove a group, delete its module and its lines here.
"""

from __future__ import annotations

import os

from celery_delayq.errors import ConfigError
from celery_delayq.integration.fast import (
    bodies,
    declared,
    headers,
    parents,
    settings,
    writes,
)
from celery_delayq.integration.fast.group import Group

VARIABLE = "DELAYQ_FAST"

GROUPS = (
    settings.GROUP,
    parents.GROUP,
    headers.GROUP,
    declared.GROUP,
    bodies.GROUP,
    writes.GROUP,
)


def groups_of(value: str) -> tuple[Group, ...]:
    """Return the groups that a value of ``DELAYQ_FAST`` leaves on.

    An empty value means 1. The benchmark also switches off single groups, such as
    ``-headers,-writes``.

    Raises
    ------
    ConfigError
        The value is invalid.
    """
    if value in ("", "1"):
        return GROUPS
    if value == "0":
        return ()
    items = value.split(",")
    off = {item.removeprefix("-") for item in items}
    if not all(item.startswith("-") for item in items) or off - {group.name for group in GROUPS}:
        names = ", ".join(group.name for group in GROUPS)
        raise ConfigError(
            f"{VARIABLE}={value!r}: expected 0 (off), 1 (on), or names of groups with a minus "
            f"before each, such as -headers; there are {names}"
        )
    return tuple(group for group in GROUPS if group.name not in off)


_ON = groups_of(os.environ.get(VARIABLE, ""))

#: Made by ``DelayQ(app)``, for all apps of the process.
PROCESS = tuple(change for group in _ON for change in group.process)

#: Made when a worker starts.
WORKER = tuple(change for group in _ON for change in group.worker)
