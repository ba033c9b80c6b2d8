"""Write ``docs/changes.md``, the changes to Celery: ``python -m tests.support.changes_page``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from celery_delayq.integration import fast, flower, install
from celery_delayq.integration.fast.group import Group
from celery_delayq.integration.replace import Change, Promise
from tests.benchmarks.figures import filled, read

PAGE = Path(__file__).parents[2] / "docs" / "changes.md"

#: The time at which the changes of each part of the table are made.
MOMENTS = {
    "import": install.TRANSPORT,
    "`DelayQ(app)`": (*install.PROCESS, *install.APP, *flower.TAB),
    "tasks are known": install.TASK,
    "first context": install.CONTEXT,
    "asyncio client": install.AIO,
    "consuming begins": install.GREENLETS,
    "worker": (*install.worker_changes(), *install.REQUEST),
    "worker with `DelayQ(app)`": install.EXTENDED_WORKER,
    "worker is ready": install.POOL,
    "worker connects": install.CONSUMER,
    "worker connects to RabbitMQ": install.LOOP,
    "Flower": flower.CHANGES,
}

HEAD = """# Changes to Celery and kombu

What the package changes in Celery, kombu, billiard and logging. {promised} changes keep a promise.
{fast} more, in {groups} groups, serve [speed alone](#speed-alone). Each can be undone.

A target is `module:Class.attribute`, or a path from an object such as `app`, `task` or `worker`;
*when* is the moment: the import of the package, the start of a worker, and so on; *upstream* is a
change that would make ours unnecessary. `python -m tests.support.changes_page`
writes this page from `integration/install.py`.
"""

SPEED = """## Speed alone

Each group is a module of `integration/fast`. `DELAYQ_FAST=0` in the environment switches all off.
A group that saves less than twice the noise is removed.
"""

MEASURED = """

`python -m tests.benchmarks --only fast --figures` measures the user CPU of a task without a group
and with it, all others on. *The same twice* is the noise. *send* is a publish, *run* a task in a
prefork worker.

<!-- figures: fast -->
<!-- end of figures -->
"""


def page() -> str:
    """Return the page for the current code and figures."""
    promised = [each for each in install.all_changes() if each.promise]
    changes = [each for group in fast.GROUPS for each in (*group.process, *group.worker)]
    head = HEAD.format(promised=len(promised), fast=len(changes), groups=len(fast.GROUPS))
    parts = [head, *map(_of_promise, Promise), SPEED, *_of_groups(fast.GROUPS)]
    return filled("\n".join(parts) + MEASURED, read())


def _of_promise(promise: Promise) -> str:
    lines = [f"## {promise.value.rstrip('.')}\n"]
    lines.append("| changed | when | without the change | by | upstream |")
    lines.append("| --- | --- | --- | --- | --- |")
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for moment, changes in MOMENTS.items():
        for each in changes:
            if each.promise is promise:
                row = moment, each.without, f"`{_maker(each)}`", each.upstream
                rows.setdefault(row, []).append(_target(each))
    lines += [_line(("<br>".join(targets), *row)) for row, targets in rows.items()]
    return "\n".join(lines) + "\n"


def _of_groups(groups: Iterable[Group]) -> Iterator[str]:
    yield "| group | changed | without the change | upstream |"
    yield "| --- | --- | --- | --- |"
    for group in groups:
        changes = (*group.process, *group.worker)
        targets = "<br>".join(map(_target, changes))
        reasons = "<br>".join(dict.fromkeys(each.without for each in changes))
        yield _line((f"`{group.name}`", targets, reasons, group.upstream))


def _target(change: Change) -> str:
    limits = ", ".join(filter(None, (change.condition, change.versions)))
    return f"`{change.target}`{f' ({limits})' if limits else ''}"


def _maker(change: Any) -> str:
    """Return our function, below ``celery_delayq.integration``."""
    made = getattr(change, "receiver", None) or getattr(change, "by", None)
    if made is None:
        value = getattr(change, "value", None)
        return value if isinstance(value, str) else "flower.tab"
    if isinstance(made, partial):  # by `mixed_into`
        return str(made.args[0]).removeprefix("celery_delayq.integration.").replace(":", ".")
    return f"{made.__module__.removeprefix('celery_delayq.integration.')}.{made.__qualname__}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
