"""Warnings of a worker when it is ready, and of a producer at its first message."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from importlib.util import find_spec
from inspect import signature
from itertools import takewhile
from typing import Any

import celery
from celery import Celery, Task
from celery.app.amqp import AMQP
from kombu import Producer

from celery_delayq.celery_versions import NEWEST_TESTED_CELERY
from celery_delayq.errors import InvalidUnique
from celery_delayq.integration import beat_guard
from celery_delayq.integration.context import CONTEXT_OPTION
from celery_delayq.model import envelope, unique
from celery_delayq.model.cluster_tags import cluster_tags, tag_of
from celery_delayq.model.envelope import parse_iso
from celery_delayq.model.limits import LIMIT_OPTION, Limit
from celery_delayq.model.limits.of_app import LimitedTask, limits_of
from celery_delayq.model.retries import options as retry_options
from celery_delayq.utils.once import warn_once
from celery_delayq.utils.text import similar_name

logger = logging.getLogger(__name__)

#: Our options of a call. ``DelayQ(app)`` removes them from the message's properties.
CALL_OPTIONS = frozenset({*unique.OPTIONS, *retry_options.OPTIONS, *retry_options.TASK_OPTIONS})

#: Our options of a task that Celery does not have.
_TASK_OPTIONS = CALL_OPTIONS - {"max_retries", "retry_jitter"}

#: All options of a call that have no effect without ``DelayQ(app)``.
_NEEDING_EXTENSION = CALL_OPTIONS | {CONTEXT_OPTION}

#: Options of a call that no signature of Celery or kombu has: properties of AMQP, and stamps.
_PROPERTIES = frozenset(
    {
        *("app_id", "cluster_id", "content_encoding", "content_type", "correlation_id"),
        *("delivery_mode", "expiration", "message_id", "origin", "reply_to", "stamped_headers"),
        *("task_id", "timestamp", "type", "user_id"),
    }
)

#: All options that a call may have.
KNOWN_OPTIONS = frozenset(
    {
        *_NEEDING_EXTENSION,
        *_PROPERTIES,
        LIMIT_OPTION,
        *(
            name
            for call in (
                *(Task.apply_async, Task.retry, Celery.send_task, AMQP.as_task_v2),
                *(Producer.publish, Producer._publish),
            )
            for name in signature(call).parameters
        ),
    }
)

#: Options of a task that are no attributes of Celery's class.
_OF_DECORATOR = frozenset(
    {
        *("autoretry_for", "base", "bind", "dont_autoretry_for", "lazy", "pydantic"),
        *("pydantic_context", "pydantic_dump_kwargs", "pydantic_strict", "retry_backoff"),
        *("retry_backoff_max", "retry_jitter", "retry_kwargs", "run", "shared"),
    }
)

#: All options that a task may have.
_KNOWN_TASK_OPTIONS = frozenset({*dir(Task), *_OF_DECORATOR, *CALL_OPTIONS, LIMIT_OPTION})

#: Least similarity of two options for one to be a misspelling of the other.
_SIMILARITY = 0.8

#: The last line about the worker itself in Celery's banner.
_BANNER_LINE = ".> task events:"

_NO_EFFECT_TEXT = (
    "The option {} of {} has no effect: it needs DelayQ(app), and this app has the transport alone"
)


def check_worker(sender: Any, **_: Any) -> None:
    """Log a warning for each problem of a worker's app."""
    for text in problems(sender.app, getattr(sender, "connection", None)):
        warn_once(logger, text)


def show_enabled_parts(controller: Any, startup_info: Callable[..., str]) -> Callable[..., str]:
    """Wrap ``startup_info``: the banner of a worker shows which parts of this package are on."""

    def startup_info_with_parts(*args: Any, **kwargs: Any) -> str:
        lines = startup_info(*args, **kwargs).splitlines(keepends=True)
        for place, line in enumerate(lines):
            before, marker, _ = line.partition(_BANNER_LINE)
            if marker:
                lines.insert(place + 1, f"{' ' * len(before)}{_enabled_parts(controller.app)}\n")
                break
        return "".join(lines)

    return startup_info_with_parts


def _enabled_parts(app: Any) -> str:
    with app.connection_for_read() as connection:
        settings = getattr(connection.transport, "settings", None)
        on_rabbitmq = hasattr(connection.transport, "dead_letter_connection")
    parts = {
        "transport": settings is not None,
        "DelayQ(app)": getattr(app, "_delayq", None) is not None,
        "late acks": app.conf.task_acks_late,
    }
    if settings is not None and not on_rabbitmq:  # RabbitMQ needs no dispatcher
        parts["dispatcher"] = settings.dispatch
    shown = ", ".join(f"{name} {'on' if is_on else 'off'}" for name, is_on in parts.items())
    return f".> delayq:      {shown}"


def problems(app: Any, connection: Any) -> Iterator[str]:
    """Yield a text for each problem of a worker.

    A Celery newer than the tested ones is a problem only for an app that uses the package. Workers
    of other apps import the package too, for its commands. With the extension, a
    worker has a problem if it uses a stock transport, acknowledges early despite
    ``at_least_once=True``, has no limit for tasks that kill it, sets options of celery beat that
    have no effect, cannot send webhooks, or has tasks whose limit cannot hold or whose calls are
    refused. Without the extension, task options or periodic entries that need the extension are a
    problem.
    """
    transport: Any = getattr(connection, "transport", None)
    delayq = getattr(app, "_delayq", None)
    is_used = delayq is not None or hasattr(transport, "settings")
    if is_used and celery.VERSION[:2] > NEWEST_TESTED_CELERY:
        yield (
            f"Celery {celery.__version__} is newer than the newest tested one, "
            f"{'.'.join(map(str, NEWEST_TESTED_CELERY))}: parts of this package may not work. "
            "Install a tested one, see docs/support.md"
        )
    on_rabbitmq = hasattr(transport, "dead_letter_connection")
    if app.conf.beat_schedule and hasattr(transport, "settings") and (on_rabbitmq or not delayq):
        yield (
            f"beat_schedule has entries ({len(app.conf.beat_schedule)}): workers fire them only "
            "where there is DelayQ(app) and a broker delayq+redis://. Here celery beat has to run"
        )
    if delayq is None:
        yield from _without_extension(app, transport)
        return
    yield from stock_problems(connection)
    yield from _limits_without_effect(app, transport)
    if hasattr(transport, "settings") and not on_rabbitmq:
        yield from _wrong_unique_keys(app)
    if on_rabbitmq:
        yield from _classic_queues(app, transport.settings)
    if beat_guard.fires(app) and (names := beat_guard.without_effect(app)):
        yield (
            f"{', '.join(names)}: no effect, workers fire beat_schedule without a celery beat, see "
            "docs/periodic.md"
        )
    if delayq.webhook is not None and find_spec("httpcore") is None:
        yield (
            "DelayQ(app, webhook=…) is set, but httpcore is not installed: webhooks that this "
            'worker takes are dead letters. pip install "celery-delayq[webhook]"'
        )
    wanted = ("task_acks_late", "task_reject_on_worker_lost")
    if delayq.at_least_once:
        for setting in (name for name in wanted if not app.conf[name]):
            yield (
                f"DelayQ(app, at_least_once=True) was followed by {setting}=False, which wins: a "
                "task whose process is killed does not run again. Remove one of them"
            )


def warn_of_stock(connection: Any) -> None:
    """Warn once if an app with the extension uses kombu's own transport for Redis or RabbitMQ."""
    for text in stock_problems(connection):
        warn_once(logger, text)


def warn_of_naive_eta(app: Any, eta: Any) -> None:
    """Warn once of an ETA without a time zone that a periodic entry would read differently."""
    try:
        moment = parse_iso(eta) if isinstance(eta, str) else eta
        if moment.tzinfo is not None or not app.timezone.utcoffset(moment):
            return
    except (AttributeError, TypeError, ValueError, OverflowError):
        return  # there is no ETA, or the call is refused later
    warn_once(
        logger,
        f"An eta without a time zone is read as UTC, and not in the app's zone ({app.timezone}) as "
        "the times of periodic entries. Give it a time zone: docs/control.md",
    )


def stock_problems(connection: Any) -> Iterator[str]:
    """Yield a text for each problem of a kombu transport in an app with the extension."""
    transport = connection.transport
    if transport.driver_type in ("redis", "amqp") and not hasattr(transport, "settings"):
        yield (
            f"DelayQ(app) is set up, but the broker is {connection.as_uri()}: delays, retries and "
            "failures are those of stock Celery. Let the URL begin with "
            f"delayq+{transport.driver_type}://"
        )


def _classic_queues(app: Any, settings: Any) -> Iterator[str]:
    """Yield a text for each queue whose tasks RabbitMQ redelivers for ever if they kill workers."""
    conf = app.conf
    if not (settings.max_deliveries and conf.task_acks_late and conf.task_reject_on_worker_lost):
        return
    for name, queue in app.amqp.queues.consume_from.items():
        if (queue.queue_arguments or {}).get("x-queue-type") != "quorum":
            yield (
                f"Queue {name!r} is no quorum queue: RabbitMQ does not count its deliveries, so a "
                "task that kills its process comes back again and again. Use a new queue with "
                "task_default_queue_type='quorum'"
            )


def _limits_without_effect(app: Any, transport: Any) -> Iterator[str]:
    """Yield a text for each task or limit that cannot be kept."""
    limited = limits_of(app).of_tasks(app.tasks)
    if not limited:
        return
    names = ", ".join(sorted(repr(name) for name in {each.limit.name for each in limited.values()}))
    if hasattr(transport, "dead_letter_connection"):
        yield f"The limits {names} cannot hold on RabbitMQ: calls of their tasks are refused"
        return
    if not hasattr(transport, "settings"):
        yield f"The limits {names} have no effect on this broker: they need delayq+redis://"
        return
    for each in limited.values():
        if each.lacks_late_acks:
            yield f"A limit does not hold: {each.late_acks_text()}"
        if text := each.key_problem():
            yield f"Calls are refused: {text}"
    if hasattr(transport, "nodes_by"):
        yield from _limits_over_tags(app, limited.values(), transport.settings.cluster_tags)


def _wrong_unique_keys(app: Any) -> Iterator[str]:
    """Yield a text for each task whose unique options refuse all its calls."""
    for name, task in app.tasks.items():
        try:
            rule = unique.rule_of(name, task, unique.options_of(task, {}))
        except InvalidUnique as exc:
            yield f"Calls are refused: {exc}"
            continue
        if rule is not None and (text := rule.key_problem()):
            yield f"Calls are refused: {text}"


def _limits_over_tags(app: Any, limited: Iterable[LimitedTask], number: int) -> Iterator[str]:
    """Yield a text for each limit whose tasks go to queues of several hash tags."""
    tags = cluster_tags(number)
    queues: dict[str, dict[str, str]] = {}
    for each in limited:
        queue = _queue_of(app, each.task)
        if queue is not None:
            queues.setdefault(each.limit.name, {}).setdefault(tag_of(queue, tags), queue)
    for name, found in queues.items():
        if len(found) > 1:
            places = ", ".join(f"{queue!r} is in {tag}" for tag, queue in sorted(found.items()))
            yield (
                f"Limit({name!r}) does not hold over its queues, since they have several hash tags "
                f"of the Redis Cluster: {places}. Route its tasks by task_routes to one queue, or "
                "to queues of one tag"
            )


def _queue_of(app: Any, task: Any) -> str | None:
    """Return the queue to which a task is routed; None if the route needs a message."""
    try:
        queue = app.amqp.router.route(task._get_exec_options(), task.name).get("queue")
    except Exception:  # a router of the user's own
        return None
    name: str | None = getattr(queue, "name", queue)
    return name


def _without_extension(app: Any, transport: Any) -> Iterator[str]:
    """Yield a text for each task option that has no effect without ``DelayQ(app)``."""
    if hasattr(transport, "settings"):
        tasks = app.tasks.values()
        for name in sorted(_TASK_OPTIONS):
            if any(getattr(task, name, None) is not None for task in tasks):
                yield _NO_EFFECT_TEXT.format(name, "tasks")
        if any(isinstance(getattr(task, LIMIT_OPTION, None), Limit) for task in tasks):
            yield _NO_EFFECT_TEXT.format(LIMIT_OPTION, "tasks")


def warn_of_call(message: Mapping[str, Any]) -> None:
    """Warn once for each option of a call that had no effect."""
    given = message["properties"]
    if not _NEEDING_EXTENSION.isdisjoint(given) and envelope.is_task(message):
        for name in sorted(_NEEDING_EXTENSION.intersection(given)):
            warn_once(logger, _NO_EFFECT_TEXT.format(name, "apply_async"))


def warn_of_misspelled_call(task_name: str, options: Mapping[str, Any]) -> None:
    """Warn once for each unknown option of a call that is similar to a known one."""
    stamps = options.get("stamped_headers") or ()
    for name in options.keys() - KNOWN_OPTIONS:
        if name not in stamps and (meant := _similar_option(name)):
            warn_once(
                logger,
                f"{task_name}: {name}= is no option of a call and has no effect; "
                f"did you mean {meant}=?",
            )


def warn_of_misspelled_tasks(tasks: Iterable[Any]) -> None:
    """Warn once for each unknown option of a task that is similar to a known one."""
    for task in tasks:
        for name in _own_options(task):
            if meant := _similar_task_option(name):
                warn_once(
                    logger,
                    f"{task.name}: {name}= is no option of a task and has no effect; "
                    f"did you mean {meant}=?",
                )


def _own_options(task: Any) -> Iterator[str]:
    """Yield the unknown options of a task, from its decorator and from classes of its own."""
    for kind in takewhile(lambda each: each is not Task, type(task).__mro__):
        its = vars(kind)
        for name in its.keys() - _KNOWN_TASK_OPTIONS:
            # Functions of a class are its methods; those of a decorator are options.
            if name[0] != "_" and ("_decorated" in its or not callable(its[name])):
                yield name


@lru_cache(1024)
def _similar_option(name: str) -> str | None:
    return similar_name(name, KNOWN_OPTIONS, _SIMILARITY)


@lru_cache(1024)
def _similar_task_option(name: str) -> str | None:
    known = {each for each in _KNOWN_TASK_OPTIONS if each[0] != "_"}
    return similar_name(name, known, _SIMILARITY)
