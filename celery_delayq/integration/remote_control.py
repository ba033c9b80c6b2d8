"""A worker's answers to remote control: the schedule of its queues, without secret settings."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu import Connection
from kombu.utils.functional import maybe_list
from kombu.utils.url import maybe_sanitize_url

from celery_delayq.errors import InvalidETA
from celery_delayq.integration.replace import Promise, Replace
from celery_delayq.model.envelope import due_of_eta
from celery_delayq.model.scheduled import Filter, ScheduledTask
from celery_delayq.settings import Hidden
from celery_delayq.store.paging import read_page, scheduled_among
from celery_delayq.store.stores import Stores

logger = logging.getLogger(__name__)

#: The setting whose URL may contain a password.
_ARCHIVE_SETTING = "dead_letters_archive"

#: Most entries of the schedule in an answer.
MAX_ENTRIES = 100

#: Above this size of a message body, in characters, the answer has the short text of arguments.
MAX_BODY_CHARACTERS = 10_000

#: Priority in each entry, as in Celery's answer: the fixed priority of the worker's timer. The
#: priority of the message is in `delivery_info`.
TIMER_PRIORITY = 6


def _read(state: Any, read: Callable[[Stores, str], list[ScheduledTask]]) -> list[ScheduledTask]:
    """Read the schedule of the worker's queues; [] without a schedule or on an error."""
    consumer = state.consumer.task_consumer
    if consumer is None or not hasattr(consumer.channel, "stores"):
        return []
    try:
        stores = consumer.channel.stores
        return [*chain(*(read(stores, queue.name) for queue in consumer.queues))]
    except Exception:
        logger.exception("The schedule could not be read")
        return []


def scheduled(_panel: Any, stock: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the command ``scheduled``. For other brokers only Celery's answer is returned."""

    def scheduled(state: Any, **kwargs: Any) -> Any:
        """Answer with the schedule of the worker's queues, nearest due time first."""
        in_worker = stock(state, **kwargs)  # tasks due within min_delay, or tasks of another broker
        entries = _read(
            state, lambda stores, queue: read_page(stores, Filter(queue), MAX_ENTRIES, None).entries
        )
        nearest = heapq.nsmallest(MAX_ENTRIES, entries, key=lambda entry: entry.due)
        return [
            *in_worker,
            *(
                {"eta": _eta(entry), "priority": TIMER_PRIORITY, "request": _request(entry)}
                for entry in nearest
            ),
        ]

    return scheduled


def query_task(_panel: Any, stock: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the command ``query_task``. For other brokers only Celery's answer is returned."""

    def query_task(state: Any, ids: Any, **kwargs: Any) -> Any:
        """Answer with the tasks in the worker and the scheduled tasks of its queues."""
        in_worker = stock(state, ids, **kwargs)
        others = [id for id in map(str, maybe_list(ids) or []) if id not in in_worker]
        entries = _read(
            state, lambda stores, queue: scheduled_among(stores.of(queue), queue, others)
        )
        return {**{entry.id: ("scheduled", _request(entry)) for entry in entries}, **in_worker}

    return query_task


def _eta(entry: ScheduledTask) -> str:
    """Return the due time of an entry: its original ETA, or the new time of a moved entry."""
    try:
        if entry.eta is not None and due_of_eta(entry.eta) == due_of_eta(entry.due):
            sent: str = maybe_make_aware(maybe_iso8601(entry.eta)).isoformat()
            return sent
    except InvalidETA:
        pass  # the ETA was not written by this package
    return entry.due.isoformat()


def _request(entry: ScheduledTask) -> dict[str, Any]:
    """Return the task of an entry in the form of Celery's ``Request.info``."""
    message = entry.message or {}
    properties = message.get("properties", {})
    args: Any = None
    kwargs: Any = None
    if len(message.get("body", "")) <= MAX_BODY_CHARACTERS:
        args, kwargs = entry.args, entry.kwargs
    if args is None or kwargs is None:
        args, kwargs = entry.headers.get("argsrepr"), entry.headers.get("kwargsrepr")
    return {
        "id": entry.id,
        "name": entry.task,
        "type": entry.task,
        "args": args,
        "kwargs": kwargs,
        "hostname": None,
        "time_start": None,
        "acknowledged": False,
        "delivery_info": {
            **properties.get("delivery_info", {}),
            "priority": properties.get("priority"),
            "redelivered": False,
        },
        "worker_pid": None,
    }


def hide_archive_url(sender: Any, **_: Any) -> None:
    """Hide the URL of the archive: ``celery report``, ``inspect conf`` and Flower show settings."""
    conf = sender.conf
    options = conf.broker_transport_options
    own = options.get("delayq") if isinstance(options, Mapping) else None
    if isinstance(own, Mapping) and isinstance(own.get(_ARCHIVE_SETTING), str):
        hidden = {**own, _ARCHIVE_SETTING: Hidden(own[_ARCHIVE_SETTING])}
        conf.broker_transport_options = {**options, "delayq": hidden}


#: Fields of a broker in ``stats``. Other fields, such as options, may contain passwords.
_BROKER_FIELDS = {
    *("transport", "hostname", "port", "virtual_host", "uri_prefix"),
    *("connect_timeout", "heartbeat", "failover_strategy", "login_method", "insist"),
}


def hide_passwords(_owner: Any, info: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``info``: ``stats`` shows the parts of the broker URL without the password.

    kombu would show our whole URL as the host.
    """

    def info_without_passwords(step: Any, consumer: Any) -> Any:
        plain = getattr(getattr(consumer.connection, "transport", None), "plain", None)
        if not isinstance(plain, Connection):  # another transport
            return info(step, consumer)
        shown = {name: value for name, value in plain.info().items() if name in _BROKER_FIELDS}
        shown["transport"] = f"delayq+{shown['transport']}"
        shown["hostname"] = maybe_sanitize_url(shown["hostname"])  # a socket has a URL here
        return {"broker": shown}

    return info_without_passwords


#: Made when a worker starts.
CHANGES = (
    Replace(
        target="celery.worker.control:Panel.data[scheduled]",
        by=scheduled,
        without="`inspect scheduled` does not show the schedule of the worker's queues.",
        promise=Promise.REMOTE_CONTROL,
    ),
    Replace(
        target="celery.worker.control:Panel.data[dump_schedule]",
        by=scheduled,
        without="`inspect dump_schedule`, its other name, does not either.",
        promise=Promise.REMOTE_CONTROL,
    ),
    Replace(
        target="celery.worker.control:Panel.data[query_task]",
        by=query_task,
        without="`inspect query_task` does not find scheduled tasks.",
        promise=Promise.REMOTE_CONTROL,
    ),
    Replace(
        target="celery.worker.consumer.connection:Connection.info",
        by=hide_passwords,
        without="`inspect stats` shows the URL of the broker with its password.",
        promise=Promise.SECRETS,
        upstream="kombu: have `Connection.info` parse the URL of a scheme with `+`.",
    ),
)
