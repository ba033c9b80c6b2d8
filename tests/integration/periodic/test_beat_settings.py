"""Each setting of celery beat is kept, or named in the log of workers and in the docs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from celery.app.defaults import DEFAULTS

from celery_delayq.integration.app_warnings import problems
from celery_delayq.integration.beat_guard import IGNORED_BEAT_SETTINGS
from celery_delayq.periodic import runner
from tests.integration.conftest import MakeApp

PAGE = Path(__file__).parents[3] / "docs" / "periodic.md"

#: What tests of entries in code and of missed ticks show.
KEPT = {"beat_schedule", "beat_cron_starting_deadline"}


def test_every_setting_is_known() -> None:
    """Those of the newest Celery; older ones have some of them."""
    assert {name for name in DEFAULTS if name.startswith("beat_")} <= KEPT | {
        *IGNORED_BEAT_SETTINGS
    }


@pytest.mark.parametrize("name", sorted(KEPT | {*IGNORED_BEAT_SETTINGS}))
def test_every_setting_is_in_the_docs(name: str) -> None:
    assert f"| `{name}`" in PAGE.read_text("utf-8").replace(", `", " | `")


@pytest.mark.parametrize("name", sorted(KEPT | {*IGNORED_BEAT_SETTINGS}))
def test_workers_name_what_has_no_effect(make_app: MakeApp, name: str) -> None:
    value: Any = {} if name == "beat_schedule" else "other" if "schedule" in name else 7
    app = make_app(**{name: value})
    with app.connection_for_read() as connection:
        told = [text for text in problems(app, connection) if name in text]

    assert [text.partition(":")[0] for text in told] == (
        [name] if name in IGNORED_BEAT_SETTINGS else []
    )


def test_what_is_left_as_it_is_is_not_named(make_app: MakeApp) -> None:
    app = make_app()
    with app.connection_for_read() as connection:
        assert not [text for text in problems(app, connection) if "beat_" in text]


def test_a_worker_without_a_dispatcher_fires_and_writes_no_entries(make_app: MakeApp) -> None:
    schedule = {"poll": {"task": "tasks.add", "schedule": 30, "args": (1, 2)}}
    app = make_app(beat_schedule=schedule, broker_transport_options={"delayq": {"dispatch": False}})

    assert runner.begin(app) is None
