"""Calls of the result backend in Celery's source, with their endings."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import celery

from tests.support.endings.cells import World

#: Modules that run in a worker or its children.
SOURCES = ("worker", "concurrency", "apps/worker.py", "app/trace.py", "app/task.py")


class Call(NamedTuple):
    """A call in Celery's source: *name* is ``module:function:method:number``."""

    name: str
    module: str
    lines: range


@cache
def calls() -> tuple[Call, ...]:
    """Return all calls of a result backend, and reads of a result."""
    root = Path(celery.__file__).parent
    paths = [path for name in SOURCES for path in _files(root / name)]
    found: list[Call] = []
    numbers: Counter[str] = Counter()
    for path in paths:
        module = "celery." + str(path.relative_to(root).with_suffix("")).replace("/", ".")
        for function, node, method in _calls_in(ast.parse(path.read_text("utf-8")), ""):
            name = f"{module}:{function}:{method}"
            numbers[name] += 1
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            found.append(Call(f"{name}:{numbers[name]}", module, lines))
    return (*found,)


def _files(path: Path) -> list[Path]:
    return [path] if path.suffix else sorted(path.rglob("*.py"))


def _calls_in(node: ast.AST, function: str) -> Iterator[tuple[str, ast.expr, str]]:
    for child in ast.iter_child_nodes(node):
        inner = child.name if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) else ""
        yield from _calls_in(child, inner or function)
        match child:
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Attribute(attr="backend") | ast.Name(id="backend"), attr=method
                )
            ):
                yield function, child, method
            case ast.Attribute(value=ast.Name(id="r"), attr="state"):  # of an `AsyncResult`
                yield function, child, "state"


def _anywhere(_: World) -> bool:
    return True


def _prefork(world: World) -> bool:
    return world.pool == "prefork"


def _late(world: World) -> bool:
    return world.is_late


_TRACE, _REQUEST = "celery.app.trace", "celery.worker.request"
#: By call: the endings that reach the call, and the worlds in which they do.
LED_TO: dict[str, tuple[tuple[str, ...], Callable[[World], bool]]] = {
    "celery.worker.consumer.consumer:on_unknown_task:mark_as_failure:1": (("unknown",), _anywhere),
    f"{_REQUEST}:_announce_revoked:mark_as_revoked:1": (("terminate", "expired"), _anywhere),
    f"{_REQUEST}:on_timeout:mark_as_failure:1": (("hard_limit",), _anywhere),
    f"{_REQUEST}:on_failure:mark_as_failure:1": (("reject",), _anywhere),
    f"{_REQUEST}:on_failure:mark_as_failure:2": (("killed", "hard_limit"), _prefork),
    f"{_REQUEST}:_retry_worker_lost:mark_as_retry:1": (("retried_killed",), _anywhere),
    f"{_REQUEST}:_success_was_stored:_ensure_retryable:1": (("killed",), _anywhere),
    f"{_TRACE}:handle_retry:mark_as_retry:1": (("retry",), _anywhere),
    f"{_TRACE}:handle_failure:mark_as_failure:1": (("failure",), _anywhere),
    f"{_TRACE}:trace_task:store_result:1": (("success",), _anywhere),
    f"{_TRACE}:trace_task:mark_as_done:1": (("success",), _anywhere),
    f"{_TRACE}:trace_task:state:1": (("requeue",), _late),
}
#: Reasons why other calls do not belong to this matrix.
LEFT_OUT = {
    f"{_REQUEST}:_announce_cancelled:mark_as_retry:1": "integration/transport/test_outages.py",
    "celery.worker.strategy:task_message_handler:mark_as_failure:1": "no ETA comes to Celery",
    "celery.worker.control:_revoke:get_state:1": "Celery logs its errors",
    "celery.worker.control:_revoke:mark_as_revoked:1": "Celery logs its errors",
    f"{_TRACE}:trace_task:process_cleanup:1": "Celery logs its errors",
    f"{_TRACE}:report_internal_error:prepare_exception:1": "it makes no call to the server",
    "celery.apps.worker:startup_info:as_uri:1": "it makes no call to the server",
    "celery.app.task:add_to_chord:add_to_chord:1": "the task calls it",
    "celery.app.task:update_state:store_result:1": "the task calls it",
}


def led_to(world: World, endings: set[str]) -> set[str]:
    """Return the calls that the endings of a world reach."""
    known = {call.name for call in calls()}
    return {
        name
        for name, (of, applies) in LED_TO.items()
        if name in known and applies(world) and not endings.isdisjoint(of)
    }


def named(places: set[str]) -> set[str]:
    """Return the names of calls from modules and lines."""
    split = [(module, int(line)) for module, _, line in (each.partition(":") for each in places)]
    return {
        next(
            (call.name for call in calls() if call.module == module and line in call.lines),
            f"{module}:{line}",
        )
        for module, line in split
    }
