"""Print the differences in Celery after each step of installing, as JSON. A program."""

from __future__ import annotations

import inspect
import json
import logging
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import celery
from celery import Celery, signals
from celery.utils.dispatch.signal import Signal
from kombu.utils.imports import symbol_by_name

if TYPE_CHECKING:
    from celery_delayq.integration.replace import Change

_PACKAGES = ("celery", "kombu", "billiard", "vine")

for _name in (
    "celery.apps.worker",
    "celery.backends.rpc",
    "celery.concurrency.asynpool",
    "celery.worker.consumer",
    "celery.worker.control",
    "kombu.transport",
):
    import_module(_name)
# Celery's package keeps each of its names from the first use on.
for _name in celery.__all__:
    getattr(celery, _name)


def _of_value(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    yield path, value
    if isinstance(value, Signal):
        for key, _ in value.receivers:
            yield f"{path} receiver {key}", True
    elif isinstance(value, dict) and "__builtins__" not in value:
        for key, each in [*value.items()]:
            yield f"{path}[{key}]", each


def _of_modules() -> Iterator[tuple[str, Any]]:
    yield "logging:_logRecordFactory", logging.getLogRecordFactory()
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] not in _PACKAGES:
            continue
        for attribute, value in [*vars(module).items()]:
            if isinstance(value, type) and (value.__module__, value.__name__) == (name, attribute):
                for own, method in [*vars(value).items()]:
                    yield from _of_value(f"{name}:{attribute}.{own}", method)
            elif not attribute.startswith("__"):
                yield from _of_value(f"{name}:{attribute}", value)


class Snapshot:
    """All attributes of Celery, kombu and given objects."""

    def __init__(self, **objects: Any) -> None:
        self._objects = objects
        self._found = self._take()

    def _take(self) -> dict[str, Any]:
        found = dict(_of_modules())
        for name, each in self._objects.items():
            for attribute, value in [*vars(each).items()]:
                found.update(_of_value(f"{name}.{attribute}", value))
        return found

    def differences(self) -> list[str]:
        """Return the current differences, a signal once for each receiver.

        Modules that were imported later, and their names in their packages, do not count.
        """
        before, after = self._found, self._take()
        modules = {path.partition(":")[0] for path in before}
        return sorted(
            path.partition(" receiver ")[0]
            for path in before.keys() | after.keys()
            if before.get(path) is not after.get(path)
            and path.partition(":")[0] in modules | {path}
            and not (
                ":" in path and path not in before and isinstance(after[path], (type, ModuleType))
            )
            and "._delayq" not in path
        )


class _Fake(SimpleNamespace):
    """A pool, a process or an event loop, with the methods that this package replaces."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # senders of signals need a hash

    def flush(self) -> None:
        """Drop messages that no child has."""

    def on_apply(self, target: Any, args: tuple[Any, ...] = (), **options: Any) -> None:
        """Run a task."""

    def on_terminate(self) -> None:
        """End the pool."""

    def reset(self) -> None:
        """Forget all tasks."""

    def fire_timers(self, min_delay: int = 1, max_delay: int = 10) -> float:
        """Return the time of the next timer."""
        return min(min_delay, max_delay)

    def register_with_event_loop(self, loop: Any) -> None:
        """Let an event loop read from the children."""

    def _track_child_process(self, process: Any, hub: Any) -> None:
        """Let an event loop watch a child."""

    def startup_info(self, artlines: bool = True) -> str:
        """Return the banner."""
        return "" if artlines else " "

    def _process_task(self, req: Any) -> None:
        """Give a task to the pool."""

    def stop(self, in_sighandler: bool = False, exitcode: int | None = None) -> None:
        """End the pool."""


def seen(value: Any) -> dict[str, Any]:
    """Return the attributes of a function, a method or a class that ``inspect`` shows."""
    kinds = (
        *("isfunction", "ismethod", "isclass", "iscoroutinefunction"),
        *("isgeneratorfunction", "isasyncgenfunction"),
    )
    names = ("__name__", "__qualname__", "__module__", "__doc__")
    found = {
        "kinds": [kind for kind in kinds if getattr(inspect, kind)(value)],
        **{name: repr(getattr(value, name, None)) for name in names},
        "of": type(getattr(value, "__self__", None)).__name__,
    }
    if inspect.isfunction(value) or inspect.ismethod(value):
        found["annotations"] = repr(inspect.get_annotations(value))
        found["signature"] = str(inspect.signature(value))
        found["arguments"] = repr(inspect.getfullargspec(value))
    return found


def differing(changes: Iterable[Change], **objects: Any) -> dict[str, list[Any]]:
    """Return by replacement what ``inspect`` shows of it and of the original, if that differs."""
    from celery_delayq.integration.replace import Replace, _get, _replaced

    found = {}
    for change in changes:
        if not isinstance(change, Replace) or not change.is_needed:
            continue
        owner, name = change._resolve(objects)
        new = owner and _get(owner, name)
        if new is None or _replaced(new) is None:
            continue  # its owner does not exist here, or its condition is false
        before = symbol_by_name(_replaced(new)[0])
        pair = seen(before), seen(symbol_by_name(new))
        found[change.target] = [
            {name: each[name] for name in each if pair[0].get(name) != pair[1].get(name)}
            for each in pair
        ]
    return found


def _run() -> None:
    pass


def main() -> None:
    """Print the differences of each step, and those that stay after all steps are undone."""
    found: dict[str, Any] = {}
    start = Snapshot()

    from celery_delayq import DelayQ
    from celery_delayq.integration import install, worker
    from celery_delayq.integration.replace import make, undo

    found["TRANSPORT"] = start.differences()

    app = Celery("app", broker="memory://", set_as_current=False)
    app.task(name="plain", shared=False)(_run)
    app.task(name="again", autoretry_for=(OSError,), shared=False)(_run)
    step = Snapshot(app=app)
    DelayQ(app)
    found["PROCESS APP"] = step.differences()

    app.finalize()
    for name, task in (("plain", app.tasks["plain"]), ("again", app.tasks["again"])):
        undo(install.TASK, task=task)
        step = Snapshot(task=task)
        install.change_tasks(app)
        found[f"TASK {name}"] = step.differences()

    prefork = _Fake(_maxtasksperchild=None, _max_memory_per_child=None)
    prefork._busy_workers, prefork._fileno_to_outq = set(), {}
    step = Snapshot(backend=app.backend)
    make(install.AIO, app=app)
    found["AIO"] = [f"app.{each}" for each in step.differences()]
    seen_of = differing(install.AIO, app=app)
    undo(install.AIO, app=app)

    pool = _Fake(_pool=prefork, executor=_Fake(_work_queue=[]))
    controller = _Fake(app=app, pool=pool, hub=_Fake(readers={}))
    task = app.tasks["plain"]
    import_module("celery.worker.consumer.delayed_delivery")  # a worker has imported it by then
    step = Snapshot(worker=controller, task=task)
    signals.worker_init.send(sender=controller)
    found["WORKER EXTENDED_WORKER REQUEST"] = step.differences()

    step = Snapshot(pool=pool, hub=controller.hub, processes=prefork)
    install._change_pool()
    install.change_consumer()
    install.change_loop(controller.hub)
    found["POOL CONSUMER"] = step.differences()

    seen_of |= differing(install.TASK, task=app.tasks["again"])
    seen_of |= differing(install.all_changes(), app=app, task=task, **worker.changed_objects())
    found["seen"] = seen_of

    undo((*install.CONSUMER, *install.LOOP), **worker.changed_objects())
    undo(install.POOL, **worker.changed_objects())
    found["undone pool"] = step.differences()
    undo((*install.worker_changes(), *install.EXTENDED_WORKER), **worker.changed_objects())
    for each in app.tasks.values():
        undo((*install.TASK, *install.REQUEST), task=each)
    undo(install.APP, app=app)
    undo((*install.TRANSPORT, *install.PROCESS))
    found["undone"] = start.differences()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
