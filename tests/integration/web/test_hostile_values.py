"""A table of all places of a text that others choose, and what the text may be.

Each page and each form answers, in a few hundred KB, without a tag or a control character that is
not ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from typing import Any

import pytest

from celery_delayq import DelayQ, Limit
from celery_delayq.integration.context import CONTEXT_FIELD
from celery_delayq.model.envelope import PROPERTY
from celery_delayq.utils.text import percent
from celery_delayq.web import site as web_site
from celery_delayq.web.actions import ACTIONS
from celery_delayq.web.formatting import MAX_URL
from celery_delayq.web.pages import PAGES
from celery_delayq.web.query import quoted
from tests.integration.conftest import MakeApp
from tests.integration.web.conftest import Scene, paths_of
from tests.integration.web.test_without_scripts import Page
from tests.support import TIMEOUT
from tests.support.dead_letters import details, message
from tests.support.flower import OPERATOR, Site, page_paths, serving_pages
from tests.support.runs import finished

#: Most characters of a page.
MAX_HTML = 400_000

#: HTML, a script, a template, what ends an attribute, terminal escapes, bidirectional marks, lines.
HOSTILE = (
    "</textarea></script><script>document.title = 'broken'</script>"
    '"><img src=x onerror="alert(1)">\'{{ 1 + 1 }}{% raw x %}&lt;&#60;'
    "\x1b[2J\x1b]0;owned\x07\u202etxt.exe\u2066\u200f\r\nb\x7f\x00c"
)

#: What a text may be.
TEXTS = {
    "hostile": HOSTILE,
    "long": HOSTILE + "x" * 10_000_000,
    "no UTF-8": "a\udcff<b>",
    "no character": "a\ud800<b>",
}

#: Texts that the short tier tries once, at all places together.
RARE = ("no UTF-8", "no character")
#: The text that the full tier tries at each place. The nightly tier tries the other texts.
USUAL = "hostile"

#: Tasks, entries and limits whose own pages are looked at.
Objects = Mapping[str, Iterable[str]]


# -- the places of a text


def task_name(delayq: DelayQ, text: str) -> Objects:
    delayq.app.send_task(text, task_id="other", countdown=60)
    delayq.store.dead_letters.add("celery", "dead", "failed", message("dead", text), details())
    return {"task": ["other", "dead"]}


def task_id(delayq: DelayQ, text: str) -> Objects:
    delayq.app.send_task("shop.mail", task_id=text, countdown=60)
    delayq.store.dead_letters.add("celery", text, "failed", message(text), details())
    return {"task": [text]}


def arguments(delayq: DelayQ, text: str) -> Objects:
    args, kwargs = (text, {text: [text]}), {text: text}
    delayq.app.send_task("shop.mail", args, kwargs, task_id="other", countdown=60)
    return {"task": ["other"]}


def headers(delayq: DelayQ, text: str) -> Objects:
    names = ("argsrepr", "kwargsrepr", "origin", "root_id", "parent_id", "group", "expires")
    for name in names:
        raw = message(f"with {name}", "shop.mail", 0, **{name: text})
        delayq.store.dead_letters.add("celery", f"with {name}", "failed", raw, details())
    return {"task": [f"with {name}" for name in names]}


def queue(delayq: DelayQ, text: str) -> Objects:
    delayq.app.send_task("shop.mail", task_id="other", queue=text, countdown=60)
    delayq.app.send_task("shop.mail", queue=text)
    delayq.store.dead_letters.add(text, "dead", "failed", message("dead"), details())
    delayq.pause(queue=text)
    return {"task": ["other", "dead"]}


def paused_task(delayq: DelayQ, text: str) -> Objects:
    delayq.pause(task=text)
    return {}


def failure(delayq: DelayQ, text: str) -> Objects:
    found = details(text[:9000], message=text, traceback=f"Traceback\n{text}", worker=text[:9000])
    delayq.store.dead_letters.add("celery", "dead", f"failed: {text}", message("dead"), found)
    return {"task": ["dead"]}


def run(delayq: DelayQ, text: str) -> Objects:
    fields = {"task": text, "queue": text, "worker": text, "reason": text, "state": "FAILURE"}
    runs = [finished(id, delayq.store.now_ms(), **fields) for id in ("mail-17", "digest:1")]
    delayq.store.history.add("me", 1, 100, runs)
    return {}


def context(delayq: DelayQ, text: str) -> Objects:
    raw = json.loads(message("dead"))
    raw["properties"][PROPERTY] = {CONTEXT_FIELD: json.dumps({text: text, "n": [text]})}
    delayq.store.dead_letters.add("celery", "dead", "failed", json.dumps(raw).encode(), details())
    return {"task": ["dead"]}


def canvas(delayq: DelayQ, text: str) -> Objects:
    link = delayq.app.signature(text, (text,), task_id=text)
    mail = delayq.app.signature("shop.mail", ("ada",))
    mail.apply_async(task_id="other", countdown=60, link=link, link_error=link)
    return {"task": ["other"]}


def unique_key(delayq: DelayQ, text: str) -> Objects:
    key = text.replace("{", "{{").replace("}", "}}")
    delayq.app.send_task("shop.mail", task_id="other", countdown=60, unique_key=key)
    return {"task": ["other"]}


def limit(delayq: DelayQ, text: str) -> Objects:
    stored = {percent(text): Limit("any", rate="100/m").definition.text}
    delayq.store.task_limits.announce(stored)
    return {"limit": [text]}


def mail(_: str) -> None:
    """Do nothing: no worker runs it."""


def lane(delayq: DelayQ, text: str) -> Objects:
    limit = Limit("lane", key="{0}", rate="1/d")
    task = delayq.app.task(name="shop.of_lane", limit=limit, shared=False)(mail)
    for number in range(2):
        task.apply_async((text,), task_id=f"in lane {number}", countdown=0.001)
    delayq.store.task_limits.announce({"lane": limit.definition.text})
    delayq.store.promote("celery", delayq.store.layout, 100)
    return {"task": ["in lane 0", "in lane 1"], "limit": ["lane"]}


def entry(delayq: DelayQ, text: str) -> Objects:
    delayq.periodic.add(text, 60, "shop.mail", [text], {"n": text})
    return {"entry": [text]}


def entry_fields(delayq: DelayQ, text: str) -> Objects:
    name = "".join(filter(str.isprintable, text[:200]))
    headers = {"h": text, name: text}
    delayq.periodic.add("all", 60, name, [text], {text: text}, headers=headers, queue=name)
    return {"entry": ["all"]}


def process(delayq: DelayQ, text: str) -> Objects:
    found = delayq.store.leases.acquire("celery", text, 30.0, "1", 1, has_limits=True)
    assert found.messages
    return {}


def leased_task(delayq: DelayQ, text: str) -> Objects:
    raw = message(text, text, argsrepr=text, kwargsrepr=text)
    delayq.store.client.rpush("celery", raw)
    found = delayq.store.leases.acquire("celery", "me", 30.0, "1", 9, has_limits=True)
    assert len(found.messages) > 1
    return {}


def dispatcher(delayq: DelayQ, text: str) -> Objects:
    delayq.app.send_task("shop.mail", countdown=0.001)
    delayq.store.promote("celery", delayq.store.layout, 100, dispatcher=text)
    return {}


def code_version(delayq: DelayQ, text: str) -> Objects:
    delayq.store.periodic.announce_version(text, text, None, 60_000)
    return {}


def requests(_: DelayQ, text: str) -> Objects:
    return {"": [text[:5000]]}


#: Places of many texts, whatever the text.
def many_links(delayq: DelayQ, text: str) -> Objects:
    mail = delayq.app.signature("shop.mail")
    links = [mail.clone((text[:20_000],)) for _ in range(500)]
    mail.clone(("ada",)).apply_async(task_id="other", countdown=60, link=links)
    return {"task": ["other"]}


def many_groups(delayq: DelayQ, text: str) -> Objects:
    for number in range(300):
        id, found = f"dead-{number}", details(f"Error{number}{text[:900]}")
        delayq.store.dead_letters.add("celery", id, "failed: x", message(id), found)
    return {"task": ["dead-0"]}


def many_values_of_context(delayq: DelayQ, text: str) -> Objects:
    names = {f"{number} {text[:90]}": text[:90] for number in range(2000)}
    raw = json.loads(message("dead"))
    raw["properties"][PROPERTY] = {CONTEXT_FIELD: json.dumps(names)}
    delayq.store.dead_letters.add("celery", "dead", "failed", json.dumps(raw).encode(), details())
    return {"task": ["dead"]}


def many_pauses(delayq: DelayQ, text: str) -> Objects:
    for number in range(500):
        delayq.pause(task=f"{number} {text[:900]}")
    return {}


#: The longest text of a place, in characters; others may have all of it.
LONGEST: Mapping[Callable[[DelayQ, str], Objects], int] = {
    **dict.fromkeys((task_name, task_id, queue, paused_task, unique_key), 1_000_000),
    **dict.fromkeys((process, leased_task, dispatcher, code_version), 100_000),
    **dict.fromkeys((limit, entry), 200),
}

PLACES: Mapping[str, Callable[[DelayQ, str], Objects]] = {
    each.__name__.replace("_", " "): each
    for each in (
        *(task_name, task_id, arguments, headers, queue, paused_task, failure, run, context),
        *(canvas, unique_key, limit, lane, entry, entry_fields, process, leased_task, dispatcher),
        *(code_version, requests, many_links, many_groups, many_values_of_context, many_pauses),
    )
}


# -- what a reader gets


#: Characters that change what a terminal or a reader shows.
CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


class Tags(HTMLParser):
    """What is wrong with the tags of a page, and its texts and attributes besides fields."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        is_ours = tag != "script" or "/static/" in given.get("src", "")
        if tag in ("img", "iframe", "b>") or not is_ours:
            self.wrong.append(f"<{tag}>")
        for name, value in given.items():
            is_link = name in ("href", "src", "action")
            if name.startswith("on") or (is_link and not value.startswith(("/", "#", "data:"))):
                self.wrong.append(f"{tag} {name}={value[:80]}")
            if name != "value" and CONTROL.search(value):
                self.wrong.append(f"a control character in {tag} {name}")

    def handle_data(self, data: str) -> None:
        if found := CONTROL.search(data):
            self.wrong.append(f"{found[0]!r} in {data[:80]!r}")


def wrong_of(html: str) -> list[str]:
    """Return what is wrong with a page."""
    size = [f"{len(html):,} characters"] if len(html) > MAX_HTML else []
    return [*dict.fromkeys([*size, *Tags(html).wrong])]


def forms_of(html: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield each change that a page offers: its name, and the path and the fields of its form."""
    page = Page(html)
    for form in page.forms:
        for name, value in form.buttons.values():
            if name == "action":
                fields: dict[str, Any] = {**dict(form.fields), "action": value}
                marks = [each for key, each in page.boxes.values() if key == "mark"]
                if marks and "mark" not in fields:
                    fields["mark"] = marks[:1]
                if "mark" in fields or ACTIONS[value].kind not in ("tasks", "dead letters"):
                    yield value, form.action, fields


@pytest.fixture
def site(
    make_app: MakeApp, scene: Scene, delayq_broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Site]:
    # A page of long texts takes some seconds on a busy machine.
    monkeypatch.setattr(web_site, "PAGE_TIMEOUT_SECONDS", TIMEOUT)
    app = make_app(
        extension=False,
        broker=delayq_broker_url,
        broker_transport_options={"delayq": {"history": 100}},
    )
    DelayQ(app, web_changes=lambda user, _: user == OPERATOR)
    with serving_pages(app) as site:
        yield site


def echoes(text: str) -> dict[str, str]:
    """Return paths of requests with a text where none belongs, or one that is not there."""
    whole, value = quoted(text), quoted(text[:2000])
    found = {f"{name} of none": f"/{name}/{whole}" for name in PAGES} | {"no page": f"/{whole}"}
    for name, page in PAGES.items():
        for each in (*page.fields, text[:500]) if page.title else ():
            found[f"{name} {each[:40]}"] = f"/{name}?{quoted(each)}={value}"
    return found


def placed(delayq: DelayQ, place: str, text: str) -> Objects:
    """Put a text into its place; only what is printable of it where the rest is refused."""
    put = PLACES[place]
    text = text[: LONGEST.get(put)]
    try:
        return put(delayq, text)
    except ValueError:
        return put(delayq, "".join(filter(str.isprintable, text)))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, marks=pytest.mark.full if text == USUAL else pytest.mark.nightly)
        for text in TEXTS
    ],
)
@pytest.mark.parametrize("place", PLACES)
def test_a_text_of_others_breaks_no_page_and_no_form(
    scene: Scene, site: Site, place: str, text: str
) -> None:
    objects = placed(scene.delayq, place, TEXTS[text])
    paths = {**paths_of(scene), "search": "/scheduled?argument=ada"}
    own = page_paths(**{kind: [*names] for kind, names in objects.items() if kind})
    paths |= {name: path for name, path in own.items() if len(path) < MAX_URL}
    asked = echoes(next(iter(objects[""]))) if "" in objects else {}

    wrong: dict[str, Any] = {}
    changes: dict[tuple[str, str], dict[str, Any]] = {}
    site.token()  # one cookie for all
    with ThreadPoolExecutor(4) as people:
        pages = people.map(lambda path: site.get(f"/delayed{path}"), (paths | asked).values())
        for name, answer in zip(paths | asked, pages, strict=True):
            expected = (200,) if name in paths else (200, 400, 404)
            if answer.status not in expected or wrong_of(answer.text):
                wrong[name[:80]] = answer.status, wrong_of(answer.text)
            changes |= {form[:2]: form[2] for form in forms_of(answer.text)}
        questions = people.map(lambda form: site.post(form[0][1], form[1]), changes.items())
        for (change, path), answer in zip(changes, questions, strict=True):
            if answer.status != 200 or wrong_of(answer.text):
                wrong[f"{change} {path[:80]}"] = answer.status, wrong_of(answer.text)
    assert wrong == {}
    assert changes


@pytest.mark.parametrize("text", RARE)
def test_what_utf_8_cannot_hold_breaks_no_page(scene: Scene, site: Site, text: str) -> None:
    own: dict[str, set[str]] = {}
    for place in PLACES:
        if place in ("requests", "process"):  # the leased task takes what the process would
            continue
        for kind, names in placed(scene.delayq, place, TEXTS[text]).items():
            own.setdefault(kind, set()).update(names)
    paths = paths_of(scene) | page_paths(**{kind: sorted(names) for kind, names in own.items()})

    answers = {name: site.get(f"/delayed{path}") for name, path in paths.items()}

    assert {name: each.status for name, each in answers.items() if each.status != 200} == {}
    assert {name: wrong for name, each in answers.items() if (wrong := wrong_of(each.text))} == {}
