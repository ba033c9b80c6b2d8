"""A table of all pages and all that can be wrong: each page answers, and says what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import Any

import pytest

from celery_delayq import DelayQ
from celery_delayq.testing import wait_until
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.web import site as web_site
from celery_delayq.web.actions import ACTIONS
from celery_delayq.web.pages import PAGES
from tests.integration.conftest import MakeApp
from tests.integration.web.conftest import Scene, paths_of
from tests.integration.web.test_changes import DONE, all_of, marks
from tests.support import TIMEOUT
from tests.support.flower import OPERATOR, Answer, Site, serving_pages
from tests.support.proxy import Proxy

#: Seconds that a server waits for a reply of Redis, and for a page, if Redis is silent.
REDIS_SECONDS, PAGE_SECONDS = 1.0, 2.5

LARGE = "x" * 10_000_000


@pytest.fixture
def serve(make_app: MakeApp) -> Iterator[Callable[[str], Site]]:
    """Serve the pages for a broker."""
    with ExitStack() as stack:

        def serve(broker: str) -> Site:
            app = make_app(extension=False, broker=broker)
            DelayQ(app, web_changes=lambda user, _: user == OPERATOR)
            return stack.enter_context(serving_pages(app))

        yield serve


@pytest.fixture
def site(serve: Callable[[str], Site], scene: Scene, delayq_broker_url: str) -> Site:
    return serve(delayq_broker_url)


@pytest.fixture
def proxy(delayq_redis: RedisUnderTest) -> Iterator[Proxy]:
    with Proxy(delayq_redis.port) as proxy:
        yield proxy


# -- a broker that is away, silent or slow


@contextmanager
def late(proxy: Proxy, seconds: float) -> Iterator[None]:
    proxy.latency = seconds
    try:
        yield
    finally:
        proxy.latency = 0


#: What is wrong with Redis, and the answers: a status and a text for each page.
BROKERS: Mapping[str, tuple[Callable[[Proxy], Any], int, str]] = {
    "away": (Proxy.away, 503, "cannot reach Redis"),
    "silent": (Proxy.frozen, 503, "did not answer|Timeout"),
    "late": (lambda proxy: late(proxy, 3 * REDIS_SECONDS), 503, "did not answer|Timeout"),
    "slow": (lambda proxy: late(proxy, 0.002), 200, ""),
}


@pytest.mark.parametrize(
    "trouble",
    ["away", *(pytest.param(n, marks=pytest.mark.full) for n in ("silent", "late", "slow"))],
)
def test_each_page_says_what_is_wrong_with_redis_and_then_goes_on(
    serve: Callable[[str], Site],
    prepared: Scene,
    proxy: Proxy,
    trouble: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin, status, text = BROKERS[trouble]
    if trouble in ("silent", "late"):
        monkeypatch.setattr(web_site, "REDIS_TIMEOUT_SECONDS", REDIS_SECONDS)
        monkeypatch.setattr(web_site, "PAGE_TIMEOUT_SECONDS", PAGE_SECONDS)
    site = serve(f"delayq+redis://127.0.0.1:{proxy.port}/0")
    paths = {**paths_of(prepared), "search": "/scheduled?argument=ada"}
    person = Person(site, prepared)
    forms = {name: person.asks(name) for name in ACTIONS}
    before = all_of(prepared)
    with begin(proxy):
        found = together(site, paths)
        if status != 200:  # else the changes would be made
            found |= sent_together(site, forms)
    monkeypatch.undo()
    wait_until(
        lambda: {answer.status for answer in together(site, paths).values()} == {200},
        TIMEOUT,
        "all pages are there again",
    )

    assert all_of(prepared) == before
    del found["health"]  # it says that Redis is away
    wrong = {name: answer for name, answer in found.items() if answer.status != status}
    assert wrong == {}
    shown = {name: answer.text for name, answer in found.items()}
    assert {n: t for n, t in shown.items() if not any(w in t for w in text.split("|"))} == {}
    assert not any("Traceback (most" in t for n, t in shown.items() if prepared.dead not in n)


def together(site: Site, paths: Mapping[str, str]) -> dict[str, Answer]:
    """Ask for pages side by side, as several people do."""
    with ThreadPoolExecutor(len(paths)) as people:
        answers = people.map(lambda path: site.get(f"/delayed{path}"), paths.values())
        return dict(zip(paths, answers, strict=True))


def sent_together(site: Site, forms: Mapping[str, tuple[str, Any]]) -> dict[str, Answer]:
    """Send forms side by side: as questions, and with their confirmations."""
    sent = {f"{name}, confirmed": form for name, form in forms.items()}
    for name, (path, fields) in forms.items():
        sent[name] = path, {n: value for n, value in fields.items() if n != "confirmed"}
    with ThreadPoolExecutor(8) as people:
        answers = people.map(lambda form: site.post(*form), sent.values())
        return dict(zip(sent, answers, strict=True))


# -- forms


def test_a_form_that_is_too_long_is_refused_in_a_few_lines(site: Site, scene: Scene) -> None:
    fields = {"_xsrf": site.token(), "action": "edit", "mark": marks(scene)["waiting"]}
    for args in (LARGE, json.dumps([LARGE]), "[" * 900_000):
        answer = site.post("/delayed/change", {**fields, "args": args, "confirmed": "yes"})
        assert answer.status == 400
        assert "a form takes at most" in answer.text or "expected JSON" in answer.text
        assert len(answer.text) < 2_000_000


# -- what has gone meanwhile, and two people


class Person:
    """Fills in forms of changes."""

    def __init__(self, site: Site, scene: Scene) -> None:
        self.site, self.token = site, site.token()
        self._marks = marks(scene)

    def asks(self, name: str) -> tuple[str, dict[str, Any]]:
        """Ask for a change; return the path and the fields of the form with which it is made."""
        named, fields = self._marks, DONE[name][0]
        form = {"_xsrf": self.token, "action": name}
        form |= {each: named.get(value, value) for each, value in fields.items()}
        answer = self.site.post("/delayed/change", form)
        assert answer.status == 200, (name, answer.text)
        form |= dict(re.findall(r'name="(version)" value="([^"]+)"', answer.text))
        return "/delayed/change", {**form, "confirmed": "yes"}

    def makes(self, asked: tuple[str, dict[str, Any]]) -> Answer:
        """Make a change that was asked for; return the page with its outcome."""
        answer = self.site.post(*asked)
        return self.site.get(answer.headers["Location"]) if answer.status == 303 else answer


#: Changes of what need not be there: the pause of a name, and all that match a filter.
OF_NAMES = ("pause", "resume", *(name for name in ACTIONS if "_all" in name))


def test_each_page_of_what_has_gone_says_so(site: Site, scene: Scene) -> None:
    paths = [f"/{name}/nobody" for name in PAGES if name in ("task", "periodic", "limits", "job")]
    for path in paths:
        answer = site.get(f"/delayed{path}")
        assert (answer.status, "nobody" in answer.text or "job" in path) == (404, True), path


@pytest.mark.parametrize("name", [name for name in ACTIONS if name not in OF_NAMES])
def test_a_change_of_what_has_gone_says_so(
    prepared: Scene, site: Site, delayq_redis: RedisUnderTest, name: str
) -> None:
    person = Person(site, prepared)
    asked = person.asks(name)
    delayq_redis.client.flushall()

    answer = person.makes(asked)

    assert answer.status in (200, 400, 404)
    assert "Done: " not in answer.text
    reasons = ("has gone meanwhile", "no periodic entry", "no limit", "changed it meanwhile")
    assert any(each in answer.text for each in reasons), answer.text


#: Changes for which the second of two people who see the same is refused. Others may be repeated.
ONCE = (
    *("run_now", "move", "cancel", "edit", "replay", "purge", "edit_entry"),
    *("set_limit", "end_limit", "unset_limit"),
)
#: All pairs of them. An edited task is still due when it was: to move it means the same.
PAIRS = [
    pytest.param(first, second, marks=[] if first == second else pytest.mark.full)
    for first, second in product(ONCE, ONCE)
    if ACTIONS[first].kind == ACTIONS[second].kind and (first != "edit" or second == "edit")
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_of_two_people_who_change_the_same_the_second_learns_it(
    prepared: Scene, site: Site, first: str, second: str
) -> None:
    people = Person(site, prepared), Person(site, prepared)
    asked = [each.asks(name) for each, name in zip(people, (first, second), strict=True)]

    done, refused = (each.makes(form) for each, form in zip(people, asked, strict=True))

    assert "Done: " in done.text
    assert "Done: " not in refused.text
    told = ("somebody else has changed it", "has gone", "ready already")
    assert any(each in refused.text for each in told), refused.text
