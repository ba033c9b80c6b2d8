"""Write the pictures of the pages into `docs/images`: `python -m tests.support.page_pictures`."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from celery import Celery, chain, group
from celery.schedules import crontab

from celery_delayq import DelayQ, Limit
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.testing import WorkerProcess
from tests.acceptance.browser import Browser
from tests.support.dead_letters import details, message
from tests.support.flower import APPS, OPERATOR, PASSWORDS, running_flower

IMAGES = Path(__file__).parents[2] / "docs" / "images"

#: Path, width, height and colour scheme of each picture, by its name.
PICTURES = {
    "flower": ("", 1400, 1180, "light"),
    "flower-scheduled": ("/scheduled?argument=%22customer%207%22", 1400, 900, "light"),
    "flower-task": ("/task/order-4711", 1400, 1000, "dark"),
    "flower-dead": ("/dead", 1400, 900, "light"),
    "flower-phone": ("", 360, 780, "light"),
}

TASKS = ("shop.mail.remind", "shop.mail.remind", "shop.reports.daily", "shop.orders.close")


def fill(app: Celery, delayq: DelayQ) -> None:
    """Schedule a shop's tasks: an hour of reminders, held calls, dead letters, periodic entries."""
    random.seed(4)
    delayq.schedule_many(
        {
            "args": (f"customer {n % 37}", n),
            "kwargs": {"template": "reminder"},
            "countdown": 5 + random.expovariate(1 / 1500),
            "task": random.choice(TASKS),
            "queue": random.choice(("celery", "celery", "mail", "reports")),
        }
        for n in range(600)
    )
    mail, report = (app.signature(name) for name in ("shop.mail.remind", "shop.reports.daily"))
    after = chain(group(report.clone((1,)), report.clone((2,))), report.clone((3,)))
    mail.clone(("ada", 4711), {"template": "reminder"}).apply_async(
        task_id="order-4711", countdown=5400, link=[after], link_error=[mail.clone(("ops",))]
    )
    for n in range(40):
        name = random.choice(("ValueError", "ValueError", "ConnectionError", "KeyError"))
        id, text = f"dead-{n}", f"failed: {name}: the card was declined"
        queue = random.choice(("celery", "mail"))
        delayq.store.dead_letters.add(queue, id, text, message(id), details(name))
    delayq.pause(queue="reports")
    delayq.periodic.add("report.daily", crontab(minute=0, hour=6), "shop.reports.daily")
    delayq.store.task_limits.announce({"stripe": Limit("stripe", rate="100/m").definition.text})


def main() -> None:
    """Write all pictures."""
    login = f"--basic_auth={OPERATOR}:{PASSWORDS[OPERATOR]}"
    with EmbeddedRedis() as server, tempfile.TemporaryDirectory() as name:
        folder, broker = Path(name), server.url_for("delayq+redis")
        app = Celery("shop", broker=broker, backend=server.url, set_as_current=False)
        delayq = DelayQ(app)
        fill(app, delayq)
        with (
            WorkerProcess("flower_tasks:app", queues=["other"], broker_url=broker, cwd=APPS),
            running_flower(broker, server.url, folder, [login]) as (site, _),
            Browser(folder / "browser") as browser,
        ):
            browser.send_headers(site.as_user(OPERATOR).headers)
            for picture, (path, width, height, scheme) in PICTURES.items():
                browser.prefer(scheme)
                browser.resize(width, height)
                browser.open(f"{site.url}/delayed{path}")
                browser.wait_for("!document.querySelector('[data-more]')")  # a search has ended
                browser.screenshot(IMAGES / f"{picture}.png")
        delayq.close()


if __name__ == "__main__":
    main()
