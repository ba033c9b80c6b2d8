"""Typos and options without effect are logged once, when a process connects, sends or works."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from celery_delayq.testing import wait_until
from celery_delayq.utils import once
from tests.integration.conftest import MakeApp
from tests.support.scene import StartWorker


@pytest.fixture(autouse=True)
def _not_warned_yet() -> Iterator[None]:
    once.warn_once.cache_clear()
    yield
    once.warn_once.cache_clear()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("extension", [True, False])
def test_misplaced_transport_options_are_reported_once(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture, extension: bool
) -> None:
    options = {"delayqs": {"lease": 5.0}, "max_scheduled": 10, "visibility_timeout": 5}
    app = make_app(extension=extension, broker_transport_options=options)

    for _ in range(2):
        app.send_task("tasks.add", (1, 2), countdown=60)
        with app.connection_for_write() as connection:
            connection.connect()

    assert warnings(caplog) == [
        f"broker_transport_options[{given!r}] has no effect; did you mean {meant}? Our settings "
        "stand in broker_transport_options['delayq']"
        for given, meant in (
            ("delayqs", "'delayq'"),
            ("max_scheduled", "['delayq']['max_scheduled']"),
        )
    ]


@pytest.mark.parametrize("delay", [{}, {"countdown": 60}], ids=["at once", "delayed"])
def test_options_of_a_call_that_need_the_extension_are_reported_once(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture, delay: dict[str, int]
) -> None:
    app = make_app(extension=False)

    for n in range(2):
        given = {"unique_key": "k", "retry_intervals": [1], "context": {"user": "ada"}}
        app.send_task("tasks.add", (n, 2), **given, **delay)
    app.send_task("tasks.add", (1, 2), priority=3, headers={"unique_key": "k"}, **delay)

    assert warnings(caplog) == [
        f"The option {name} of apply_async has no effect: it needs DelayQ(app), and this app has "
        "the transport alone"
        for name in ("context", "retry_intervals", "unique_key")
    ]


@pytest.mark.parametrize("delay", [{}, {"countdown": 60}], ids=["at once", "delayed"])
def test_with_the_extension_nothing_is_reported(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture, delay: dict[str, int]
) -> None:
    app = make_app(broker_transport_options={"delayq": {"lease": 5.0}, "visibility_timeout": 5})

    given = {"unique_key": "k", "retry_intervals": [1], "context": {"user": "ada"}}
    app.send_task("tasks.add", (1, 2), **given, **delay)

    assert warnings(caplog) == []


def test_a_worker_tells_options_of_its_tasks_that_need_the_extension(
    delayq_worker: StartWorker,
) -> None:
    worker = delayq_worker("tests.apps.typo_tasks:app", pool="solo")

    wait_until(lambda: "of tasks has no effect" in worker.log, what="it is logged")
    told = [line for line in worker.log.splitlines() if "has no effect" in line]
    assert [line.partition("The option ")[2].split()[0] for line in told] == [
        "dead_letter",
        "unique_key",
    ]
