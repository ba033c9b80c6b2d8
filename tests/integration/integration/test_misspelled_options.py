"""A misspelled option of a call or a task is logged once, with the option that is meant."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, Task, chain
from celery.exceptions import Retry

from celery_delayq import DelayQ, Item
from celery_delayq.utils import once
from tests.integration.conftest import MakeApp

#: Misspelled options of a call, each with the option that is meant.
CALL = {
    "contdown": "countdown",
    "count_down": "countdown",
    "Countdown": "countdown",
    "expire": "expires",
    "max_retry": "max_retries",
    "on_conflicts": "on_conflict",
    "retry_interval": "retry_intervals",
    "timelimit": "time_limit",
    "unique_keys": "unique_key",
}

#: Options that a call may have, of Celery, of AMQP and of users.
RIGHT = {
    "app_id": "shop",
    "compression": "zlib",
    "correlation_id": "c",
    "delivery_mode": 1,
    "expires": 3600,
    "flow": "of a user",
    "headers": {"contdown": 1},
    "ignore_result": True,
    "link": [],
    "message_id": "m",
    "priority": 3,
    "reply_to": "r",
    "retry": False,
    "retry_policy": {"max_retries": 1},
    "serializer": "json",
    "shadow": "s",
    "soft_time_limit": 5,
    "tenant": "of a user",
    "time_limit": 9,
    "user_id": "guest",
}


@pytest.fixture(autouse=True)
def _not_warned_yet() -> Iterator[None]:
    once.warn_once.cache_clear()
    yield
    once.warn_once.cache_clear()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def remind(*_args: Any, **_kwargs: Any) -> None:
    """Stand for any task."""


def apply_async(task: Any, options: dict[str, Any]) -> None:
    task.apply_async((1, 2), **options)


def send_task(task: Any, options: dict[str, Any]) -> None:
    task.app.send_task(task.name, (1, 2), **options)


def signature(task: Any, options: dict[str, Any]) -> None:
    task.si(1, 2).set(**options).apply_async()


def in_chain(task: Any, options: dict[str, Any]) -> None:
    chain(task.si(1, 2).set(**options), task.si(3, 4), app=task.app).apply_async()


def retry(task: Any, options: dict[str, Any]) -> None:
    task.push_request(id="one", args=(1, 2), kwargs={}, called_directly=False, is_eager=False)
    try:
        with pytest.raises(Retry):
            task.retry(**options)
    finally:
        task.pop_request()


def schedule_many(task: Any, options: dict[str, Any]) -> None:
    DelayQ.of(task.app).schedule_many([Item((1, 2), countdown=60)] * 3, task=task, **options)


def item_options(task: Any, options: dict[str, Any]) -> None:
    items = [Item((1, 2), task=task, countdown=60, options=options)] * 3
    DelayQ.of(task.app).schedule_many(items)


WAYS: dict[str, Callable[[Any, dict[str, Any]], None]] = {
    each.__name__: each
    for each in (
        *(apply_async, send_task, signature, in_chain, retry, schedule_many, item_options),
    )
}


@pytest.mark.parametrize("way", WAYS)
def test_a_misspelled_option_of_a_call_is_reported_once(
    app: Celery, add: Any, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    for wrong in CALL:
        for _ in range(2):
            WAYS[way](add, {wrong: 1})

    assert warnings(caplog) == [
        f"tasks.add: {wrong}= is no option of a call and has no effect; did you mean {meant}=?"
        for wrong, meant in CALL.items()
    ]


@pytest.mark.parametrize("way", [apply_async, send_task, signature, in_chain])
def test_no_option_of_celery_or_of_users_is_taken_for_a_misspelled_one(
    app: Celery,
    add: Any,
    caplog: pytest.LogCaptureFixture,
    way: Callable[[Any, dict[str, Any]], None],
) -> None:
    for name, value in RIGHT.items():
        way(add, {name: value})

    assert warnings(caplog) == []


def test_a_stamp_may_have_any_name(app: Celery, add: Any, caplog: pytest.LogCaptureFixture) -> None:
    stamped = add.si(1, 2)
    stamped.stamp(expire="a day")

    stamped.apply_async(countdown=60)

    assert warnings(caplog) == []


class WithOptions(Task):
    """The base of a user's tasks."""

    tenant = "shop"
    max_retry = 3

    def on_retries(self) -> None:
        """Resembles an option, and is a method."""


TASK = {
    "unique_keys": "unique_key",
    "retry_interval": "retry_intervals",
    "acks_lates": "acks_late",
    "max_retry": "max_retries",
    "rate_limits": "rate_limit",
    "autoretry_fors": "autoretry_for",
}


@pytest.mark.parametrize("wrong", TASK)
@pytest.mark.parametrize("kind", ["decorated", "class"])
def test_a_misspelled_option_of_a_task_is_reported_once(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture, kind: str, wrong: str
) -> None:
    app = make_app(extension=kind == "decorated")
    if kind == "decorated":
        app.task(name="shop.remind", shared=False, **{wrong: 1})(remind)
    else:
        body = {"name": "shop.remind", "run": staticmethod(remind), wrong: 1}
        app.register_task(type("Remind", (app.Task,), body)())

    app.finalize()
    DelayQ.of(app)
    DelayQ.of(app)

    assert warnings(caplog) == [
        f"shop.remind: {wrong}= is no option of a task and has no effect; did you mean "
        f"{TASK[wrong]}=?"
    ]


def test_attributes_of_users_and_options_of_celery_are_no_misspelled_ones(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app()
    celery_own = {
        "acks_late": True,
        "autoretry_for": (OSError,),
        "bind": True,
        "default_retry_delay": 1,
        "dont_autoretry_for": (KeyError,),
        "ignore_result": True,
        "max_retries": 3,
        "pydantic_strict": False,
        "rate_limit": "9/s",
        "reject_on_worker_lost": True,
        "resultrepr_maxsize": 99,
        "retry_backoff": True,
        "retry_backoff_max": 60,
        "retry_jitter": False,
        "retry_kwargs": {"max_retries": 2},
        "serializer": "json",
        "soft_time_limit": 5,
        "store_errors_even_if_ignored": True,
        "time_limit": 9,
        "track_started": True,
        "typing": False,
    }
    ours = {"unique_key": "{0}", "retry_intervals": None, "dead_letter": True, "skip_after": 60}
    users = {"tenant": "shop", "unique_on": ["a"], "once": {}, "flush_every": 9, "owner": "me"}
    app.task(name="shop.all", shared=False, **celery_own, **users)(remind)
    app.task(name="shop.ours", shared=False, **ours)(remind)
    app.finalize()
    app.register_task(type("Run", (WithOptions,), {"name": "shop.run", "run": remind})())
    told = warnings(caplog)
    DelayQ.of(app)

    assert told == []
