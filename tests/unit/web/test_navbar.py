"""The link in Flower's navigation."""

from __future__ import annotations

from pathlib import Path

import pytest
from flower.urls import settings

from celery_delayq.web.navbar import with_link


def test_the_link_stands_behind_that_to_the_broker() -> None:
    navbar = Path(settings["template_path"], "navbar.html").read_text("utf-8")
    broker, delayed = "reverse_url('broker')", "{{ reverse_url('main') }}delayed"

    found = with_link(navbar)

    assert found.count(broker) == navbar.count(broker) == 1
    assert found.index(broker) < found.index(delayed)
    assert found.count(">Delayed<") == 1
    assert found.count("<li") == navbar.count("<li") + 1


def test_a_navigation_without_the_broker_stays_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    assert with_link("<nav></nav>") == "<nav></nav>"
    assert "no link to the broker" in caplog.text
