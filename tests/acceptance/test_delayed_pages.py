"""The pages of delayed tasks in a real browser: in Flower, old and new, and alone."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab

from celery_delayq import DelayQ, Limit
from celery_delayq.testing import ManagedProcess
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.utils.text import percent
from celery_delayq.web.actions import ACTIONS
from celery_delayq.web.pages import PAGES
from tests.acceptance.browser import Browser
from tests.integration.conftest import MakeApp
from tests.support.dead_letters import details, message
from tests.support.flower import (
    APPS,
    OLDEST,
    OPERATOR,
    PAGE_OBJECTS,
    PASSWORDS,
    Site,
    page_paths,
    running_flower,
)
from tests.support.npm import axe
from tests.support.runs import finished

pytestmark = pytest.mark.full

WIDTHS = (1400, 360)
LOGIN = ",".join(f"{user}:{word}" for user, word in PASSWORDS.items())

#: Where the pages are, and whether there is a login.
KINDS = ("newest", "oldest", "newest with a login", "oldest with a login", "alone")
#: Those on which somebody may change tasks.
WITH_RIGHTS = KINDS[2:]

#: Names that break pages which escape too little.
HOSTILE = (
    "<script>document.title = 'broken'</script>",
    '"><img src=x onerror="document.title=\'broken\'">',
    "{{ 1 + 1 }}{% raw x %}",
    "\u202etxt.exe",
    "\x1b[2J\x1b]0;owned\x07",
    "a\r\nb",
    "x" * 100_000,
)


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return make_app(broker_transport_options={"delayq": {"history": 100}})


@pytest.fixture
def delayq(app: Celery) -> DelayQ:
    return DelayQ.of(app)


@contextmanager
def running(kind: str, redis: RedisUnderTest, folder: Path) -> Iterator[Site]:
    """Yield the pages. Those of Flower have a prefix if there is a login."""
    broker = redis.server.url_for("delayq+redis")
    has_login = "login" in kind
    if kind == "alone":
        users = folder / "users"
        users.write_text("\n".join(f"{user}:{word}" for user, word in PASSWORDS.items()))
        command = [sys.executable, "-m", "celery", "-A", "flower_tasks:app", "delayq", "web"]
        command += ["--port=0", f"--auth-file={users}"]
        with ManagedProcess(command, env={"CELERY_BROKER_URL": broker}, cwd=APPS) as process:
            port = int(process.wait_log(r"pages on http://127\.0\.0\.1:(\d+)/")[1])
            yield Site("127.0.0.1", port)
        return
    options = [f"--basic_auth={LOGIN}"] if has_login else []
    release = OLDEST if kind.startswith("oldest") else ""
    prefix = "tools/queue" if has_login else ""
    with running_flower(broker, redis.url, folder, options, release=release, prefix=prefix) as (
        site,
        process,
    ):
        yield site
        assert "Traceback" not in process.log


def on(*telling: str, of: tuple[str, ...] = KINDS) -> pytest.MarkDecorator:
    """Run a test on each kind: on the telling ones in `make test-full`, on all in `make nightly`.

    The tests share the kinds out, so that the full tier has each of them at least once.
    """
    return pytest.mark.parametrize(
        "kind",
        [each if each in telling else pytest.param(each, marks=pytest.mark.nightly) for each in of],
        indirect=True,
    )


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def site(kind: str, app: Celery, delayq_redis: RedisUnderTest, tmp_path: Path) -> Iterator[Site]:
    with running(kind, delayq_redis, tmp_path) as site:
        yield site


@pytest.fixture
def browser(kind: str, site: Site, tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "browser") as browser:
        if kind in WITH_RIGHTS:
            browser.send_headers(site.as_user(OPERATOR).headers)
        yield browser


def fill(app: Celery, delayq: DelayQ, names: tuple[str, ...] = ("shop.mail",)) -> None:
    """Make tasks, dead letters, periodic entries and limits with names, ids and arguments."""
    for name in names:
        app.send_task(name, (name,), {"note": name}, task_id=name, countdown=1800)
        short = name[:200]
        delayq.store.dead_letters.add(
            "celery", f"dead {name}", f"failed: {name}", message(f"dead {name}", name),
            details("ValueError", message=short, traceback=f"Traceback\n{name}"),
        )  # fmt: skip
        delayq.pause(task=short)
        delayq.periodic.add(short, crontab(minute=0), short, [short], {"note": short})
        stored = {percent(short): Limit("any", rate="100/m").definition.text}
        delayq.store.task_limits.announce(stored)
    delayq.periodic.add("off", 60, "shop.report")
    delayq.periodic.pause("off")
    delayq.store.task_limits.announce({"changed": Limit("changed", rate="1/m").definition.text})
    delayq.limits.set("changed", concurrency=2)


#: Pages of what `fill` makes.
OBJECTS = {
    "task": ("shop.mail", "dead shop.mail"),
    "entry": ("shop.mail", "off"),
    "limit": ("shop.mail", "changed"),
}

#: Paths of all pages, with and without objects.
PATHS = (*page_paths().values(), "/scheduled?argument=mail")
PATHS_OF_OBJECTS = (*page_paths(**OBJECTS).values(), "/scheduled?argument=mail")

#: Finds what keeps people from reading our part of a page. Flower's own parts are not ours.
AXE = """
axe.run('#delayed', {resultTypes: ['violations']}).then(result => result.violations
  .filter(each => ['serious', 'critical'].includes(each.impact))
  .map(each => each.id + ': ' + each.nodes.slice(0, 3).map(node => node.html).join(' ')))
"""


def look_at(
    browser: Browser, site: Site, path: str, width: int, status: int = 200
) -> list[tuple[str, int, str]]:
    """Return what is wrong with a page: what does not fit, what fails, and what few can read."""
    browser.resize(width, 900)
    browser.open(f"{site.url}/delayed{path}")
    return [(path, width, each) for each in problems(browser, status)]


def problems(browser: Browser, status: int = 200) -> list[str]:
    """Return what is wrong with the page with this status that the browser shows."""
    found = [each for each in browser.errors() if f"a status of {status} " not in each]
    if not browser.evaluate("document.querySelector('#delayed h1') !== null"):
        found.append(browser.text())
    if browser.evaluate("document.documentElement.scrollWidth > innerWidth"):
        found.append("it does not fit")
    found += browser.evaluate(f"{axe()};{AXE}")
    return found


#: The changes that a page offers.
OFFERED = "[...document.querySelectorAll('#delayed button[name=action]')].map(each => each.value)"

#: Asks for a change, with the first task of a list; false if the page does not offer it.
ASK = """
(() => {
  const button = [...document.querySelectorAll('#delayed button[name=action]')]
    .find(each => each.value === %s);
  const box = button && button.form.querySelector('input[type=checkbox][name=mark]');
  if (box && !box.checked) { box.click(); }
  if (button) { setTimeout(() => button.click()); }
  return Boolean(button);
})()
"""

#: Sends the form of a question.
SEND = "setTimeout(() => document.querySelector('#delayed .dq-primary').click())"

#: A field of the form that takes any text.
TEXT_FIELD = "#delayed form :is(input[name]:not([type]), textarea)"


def sends(browser: Browser, script: str) -> None:
    """Run a script that sends a form, and wait until the next page is there."""
    browser.evaluate("window.isOld = true")
    assert browser.evaluate(script), browser.text()
    browser.wait_for("!window.isOld && document.readyState === 'complete'")


def looks_at_forms(
    browser: Browser, site: Site, path: str, width: int, seen: set[str]
) -> list[Any]:
    """Look at each form that a page leads to and that was not seen yet, also with a wrong value."""
    wrong: list[Any] = []
    for name in sorted({*browser.evaluate(OFFERED)} - seen):
        seen.add(name)
        browser.open(f"{site.url}/delayed{path}")
        sends(browser, ASK % json.dumps(name))
        wrong += [(path, name, width, each) for each in problems(browser)]
        if browser.evaluate(f"document.querySelector('{TEXT_FIELD}') !== null"):
            browser.evaluate(f"document.querySelector('{TEXT_FIELD}').value = '?'")
            sends(browser, SEND)
            wrong += [(path, name, width, "wrong", each) for each in problems(browser, 400)]
    return wrong


@on("newest with a login")
def test_each_page_and_form_fits_and_everybody_can_use_it(
    app: Celery, delayq: DelayQ, site: Site, browser: Browser, kind: str
) -> None:
    """A walk: all pages, and from them all forms. Without a login there are none."""
    wrong: list[Any] = [each for path in PATHS for each in look_at(browser, site, path, WIDTHS[0])]
    fill(app, delayq)
    delayq.pause(queue="slow")
    for width, scheme in ((WIDTHS[0], "light"), (WIDTHS[1], "light"), (WIDTHS[0], "dark")):
        browser.prefer(scheme)
        seen: set[str] = set()
        for path in PATHS_OF_OBJECTS:
            wrong += look_at(browser, site, path, width)
            if scheme == "light":
                wrong += looks_at_forms(browser, site, path, width, seen)
        wrong += look_at(browser, site, "/task/nobody", width, 404)
        if scheme == "light":
            assert seen == ({*ACTIONS} if kind in WITH_RIGHTS else set())
    assert wrong == []


def test_the_walk_knows_what_pages_are_about() -> None:
    assert {name for name, page in PAGES.items() if page.has_objects} == {*PAGE_OBJECTS}
    assert {*PAGE_OBJECTS.values()} == {"change", *OBJECTS}


@on("alone", of=WITH_RIGHTS)
def test_the_outcome_of_a_change_fits_and_everybody_can_read_it(
    app: Celery, delayq: DelayQ, site: Site, browser: Browser
) -> None:
    fill(app, delayq)
    for width in WIDTHS:
        browser.resize(width, 900)
        browser.open(f"{site.url}/delayed/limits/shop.mail")
        click(browser, "Change")
        fill_in(browser, "limit_rate", f"{width + 1}/m")
        click(browser, "Save")
        assert "Done: " in browser.text()
        assert f"{width + 1}/m" in browser.text()
        assert problems(browser) == []


@on("oldest with a login")
def test_no_name_runs_or_breaks_a_page(
    app: Celery, delayq: DelayQ, site: Site, browser: Browser
) -> None:
    fill(app, delayq, HOSTILE)
    short = [name for name in HOSTILE if len(name) < 1000]
    tasks = [*short, *(f"dead {name}" for name in short if "\n" not in name)]
    paths = page_paths(task=tasks, entry=short, limit=short)
    for path in (*paths.values(), "/scheduled?argument=mail"):
        wrong = look_at(browser, site, path, WIDTHS[1])
        assert wrong == [], "\n".join(map(str, wrong))
        html = browser.evaluate("document.querySelector('#delayed').innerHTML")
        assert not {"\u202e", "\x1b"} & {*html}
        assert (
            browser.evaluate("document.querySelectorAll('#delayed :is(script, img)').length") == 0
        )
    reader = site.as_user(OPERATOR)
    for page in ("/delayed/scheduled", "/delayed/dead"):
        links = set(re.findall(r'href="[^"]*(/delayed/task/[^"]+)"', reader.get(page).text))
        assert len(links) >= len(HOSTILE) - 1  # no browser would send a long one
        assert {reader.get(link).status for link in links} == {200}
    assert browser.evaluate("document.title") != "broken"


#: Clicks what has a text, as a reader finds it.
CLICK = """
(() => {
  const found = [...document.querySelectorAll('a, button')]
    .find(each => each.offsetParent && each.innerText.trim().startsWith(%s));
  if (found) { setTimeout(() => found.click()); }
  return Boolean(found);
})()
"""


def click(browser: Browser, text: str) -> None:
    """Click a link or a button, and wait until the next page is there."""
    browser.evaluate("window.isOld = true")
    assert browser.evaluate(CLICK % json.dumps(text)), (text, browser.text())
    browser.wait_for("!window.isOld && document.readyState === 'complete'")


def fill_in(browser: Browser, name: str, text: str) -> None:
    """Write into a field."""
    field = f"document.querySelector('#delayed [name={name}]')"
    browser.evaluate(f"{field}.value = {json.dumps(text)}")


@on("newest with a login", of=WITH_RIGHTS)
def test_someone_with_the_tab_alone_does_all_of_it(
    app: Celery, delayq: DelayQ, site: Site, browser: Browser
) -> None:
    """Find a task by customer, see why it waits, move it, replay a dead one, pause a queue."""
    for number in range(120):
        app.send_task("shop.mail", (f"customer {number}",), task_id=f"m{number}", countdown=3600)
    delayq.store.dead_letters.add(
        "celery", "dead", "failed: ValueError: declined", message("dead"), details()
    )
    before = delayq.get("m77")
    assert before is not None

    if "login" in str(site.prefix and "login"):
        browser.open(f"{site.url}/workers")
        click(browser, "Delayed")
    else:
        browser.open(site.url)
    click(browser, "Scheduled")
    fill_in(browser, "argument", "customer 77")
    click(browser, "Search")
    browser.wait_for("document.querySelectorAll('#dq-rows tr').length === 1")
    click(browser, "m77")
    assert "It is due at" in browser.text()
    click(browser, "Move")
    fill_in(browser, "by", "2h")
    click(browser, "Move")
    assert "Done: " in browser.text()
    after = delayq.get("m77")
    assert after is not None
    assert (after.due - before.due).total_seconds() == 7200

    click(browser, "Dead letters")
    click(browser, "dead")
    assert "the card was declined" in browser.text()
    click(browser, "Replay")
    fill_in(browser, "args", '["ada"]')
    click(browser, "Replay")
    assert "Done: " in browser.text()
    assert delayq.count_dead() == 0

    click(browser, "Overview")
    click(browser, "Pause")
    assert "Pause: queue celery" in browser.text()
    click(browser, "Pause")
    assert "Done: " in browser.text()
    assert [*delayq.paused().queues] == ["celery"]


@on("oldest with a login", of=WITH_RIGHTS)
def test_an_entry_is_edited_on_its_page(
    app: Celery, delayq: DelayQ, site: Site, browser: Browser
) -> None:
    fill(app, delayq)
    now = delayq.store.now_ms()
    run = finished("shop.mail:1700000000000", now, state="FAILURE", reason="ValueError: declined")
    delayq.store.history.add("me", 1, 100, [run])

    browser.open(f"{site.url}/delayed/periodic")
    click(browser, "shop.mail")
    shown = browser.text()
    for each in ("every hour", "['shop.mail']", "FAILURE", "ValueError: declined"):
        assert each in shown, each
    click(browser, "Edit")
    fill_in(browser, "schedule", "every soon")
    click(browser, "Save")
    assert "expected an interval, like" in browser.text()
    fill_in(browser, "schedule", "30 9 * * mon-fri")
    fill_in(browser, "args", '["bob"]')
    fill_in(browser, "to_queue", "slow")
    click(browser, "Save")
    assert "Done: " in browser.text()
    click(browser, "See it")
    assert "at 09:30, on mon-fri" in browser.text()
    entry = delayq.periodic.get("shop.mail")
    assert entry is not None
    assert (entry.definition.args, entry.definition.options) == (("bob",), {"queue": "slow"})


@on("oldest", of=("newest", "oldest"))
def test_pages_are_read_again_until_that_is_stopped(
    app: Celery, delayq: DelayQ, site: Site, browser: Browser
) -> None:
    browser.open(f"{site.url}/delayed")
    assert "Nothing" not in browser.text()
    app.send_task("shop.mail", countdown=3600)
    first = "document.querySelector('.dq-tiles dd').innerText"
    browser.wait_for(f"{first} === '1'")
    click_only = CLICK % json.dumps("Stop refresh")
    assert browser.evaluate(click_only)
    assert browser.evaluate("document.querySelector('#dq-refresh').innerText") == "Refresh"
    assert browser.errors() == []


@pytest.mark.parametrize("kind", ["newest with a login"], indirect=True)
def test_ticks_are_counted(app: Celery, delayq: DelayQ, site: Site, browser: Browser) -> None:
    for number in range(3):
        app.send_task("shop.mail", task_id=f"m{number}", countdown=3600 + number)
    browser.open(f"{site.url}/delayed/scheduled")
    boxes = "document.querySelectorAll('#dq-scheduled-table input')"
    title = "document.querySelector('.dq-bar b').innerText"
    states = f"[{boxes}[0].checked, {boxes}[0].indeterminate, {title}]"
    for clicked, expected in (
        (1, [False, True, "1 ticked:"]),
        (0, [True, False, "3 ticked:"]),
        (2, [False, True, "2 ticked:"]),
        (2, [True, False, "3 ticked:"]),
        (0, [False, False, "Ticked:"]),
    ):
        browser.evaluate(f"{boxes}[{clicked}].click()")
        assert browser.evaluate(states) == expected


@pytest.mark.parametrize("kind", ["newest"], indirect=True)
def test_a_long_search_goes_on_by_itself(
    app: Celery, delayq: DelayQ, site: Site, browser: Browser
) -> None:
    rows = [{"args": (f"customer {n}",), "countdown": 60 + n} for n in range(20_000)]
    delayq.schedule_many(rows, task="shop.mail")

    browser.open(f"{site.url}/delayed/scheduled?argument=customer%2019999")
    browser.wait_for("document.querySelectorAll('#dq-rows tr').length === 1")
    browser.wait_for("document.querySelector('#dq-more').innerText.startsWith('Searched 20,000')")
