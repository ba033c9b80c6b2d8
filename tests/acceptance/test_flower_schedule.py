"""Flower's page of a worker shows what waits in Redis, as it shows what waits in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.testing import WorkerProcess, wait_until
from tests.acceptance import test_flower
from tests.acceptance.browser import Browser

pytestmark = pytest.mark.full

server, broker, app = test_flower.server, test_flower.broker, test_flower.app
flower, browser, worker = test_flower.flower, test_flower.browser, test_flower.worker

#: The rows below the caption of a table on the page of a worker: what each cell shows.
ROWS = """
[...document.querySelectorAll('caption')].filter(each => each.textContent.includes(%r))
  .flatMap(each => [...each.parentElement.querySelectorAll('tbody tr')])
  .map(row => [...row.cells].map(cell => cell.innerText.trim()))
"""


def test_the_page_of_a_worker_shows_the_schedule(
    worker: WorkerProcess, app: Celery, flower: str, browser: Browser, tmp_path: Path
) -> None:
    page = f"{flower}/worker/{worker.hostname}"
    for n, flight in enumerate(("UA 1545", "AA 1141", "B6 725")):
        app.send_task("flower.board", (flight,), task_id=flight, countdown=300 - n)
    app.send_task("flower.board", ("DL 461",), queue="elsewhere", countdown=300)

    browser.open(page)
    browser.evaluate("document.querySelector('#worker-tab-tasks').click()")
    browser.wait_for("document.body.innerText.includes('Scheduled tasks')")

    assert browser.evaluate(ROWS % "Scheduled") == [
        ["flower.board", flight, f"['{flight}']", "{}"]
        for flight in ("B6 725", "AA 1141", "UA 1545")
    ]
    test_flower.screenshot(browser, tmp_path / "schedule.png")

    app.control.revoke("AA 1141")
    assert DelayQ.of(app).run_now("UA 1545")
    assert app.AsyncResult("UA 1545").get(timeout=30) == "UA 1545 boarded"

    def shown() -> bool:
        # Flower shows what it knows, and asks the worker for the next time.
        browser.open(page)
        browser.evaluate("document.querySelector('#worker-tab-tasks').click()")
        return bool(
            browser.evaluate(ROWS % "Scheduled") == [["flower.board", "B6 725", "['B6 725']", "{}"]]
        )

    wait_until(shown, 30, browser.text)
    assert ["flower.board", "1"] in browser.evaluate(ROWS % "Processed")
    assert "AA 1141" in str(browser.evaluate(ROWS % "Revoked"))

    browser.open(f"{flower}/task/AA 1141")
    browser.wait_for("document.body.innerText.includes('REVOKED')")
