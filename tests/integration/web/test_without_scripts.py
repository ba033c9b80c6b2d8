"""The pages without JavaScript: links and forms, as they are in the HTML, do all of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

import pytest

from celery_delayq import DelayQ
from tests.integration.conftest import MakeApp
from tests.integration.web.conftest import Scene
from tests.support.flower import OPERATOR, Site, serving_pages


@dataclass
class Form:
    """A form: where it goes, its fields, and its buttons by their texts."""

    method: str
    action: str
    fields: list[tuple[str, str]] = field(default_factory=list)
    buttons: dict[str, tuple[str, str]] = field(default_factory=dict)


class Page(HTMLParser):
    """The links of a page by their texts, and its forms. A checkbox counts when it is ticked."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.links: dict[str, str] = {}
        self.forms: list[Form] = []
        self.boxes: dict[str, tuple[str, str]] = {}
        self.text = ""
        self._begun: list[tuple[str, dict[str, str], int]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.forms.append(Form(given.get("method", "get"), given["action"]))
        elif tag == "input" and "name" in given:
            pair = given["name"], given.get("value", "")
            if given.get("type") == "checkbox":
                self.boxes[given["aria-label"]] = pair
            else:
                self.forms[-1].fields.append(pair)
        elif tag in ("a", "button", "textarea"):
            self._begun.append((tag, given, len(self.text)))

    def handle_endtag(self, tag: str) -> None:
        if not self._begun or self._begun[-1][0] != tag:
            return
        _, given, start = self._begun.pop()
        text = self.text[start:].strip()
        if tag == "a":
            self.links.setdefault(text, given["href"])
        elif tag == "textarea":
            self.forms[-1].fields.append((given["name"], text))
        elif self.forms and given.get("type") != "button":
            self.forms[-1].buttons[text] = given.get("name", ""), given.get("value", "")

    def handle_data(self, data: str) -> None:
        self.text += data


class Reader:
    """Somebody who follows links and sends forms."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.page = Page("")
        self.opens("/delayed")

    def opens(self, path: str) -> None:
        answer = self.site.get(path)
        assert answer.status == 200, path
        self.page = Page(answer.text)

    def follows(self, text: str) -> None:
        self.opens(self.page.links[text])

    def changes(self, button: str, **values: str) -> None:
        """Send a form, and see that its change is done."""
        self.sends(button, status=200, **values)
        assert "Done: " in self.page.text

    def sends(self, button: str, *ticks: str, status: int = 200, **values: str) -> None:
        """Send the first form with a button that begins so, after filling in fields and ticking.

        The answer, without a redirect, has the *status*.
        """
        form, pressed = next(
            (form, pressed)
            for form in self.page.forms
            for text, pressed in form.buttons.items()
            if text.startswith(button)
        )
        names = [name for name, _ in form.fields]
        assert {*values} <= {*names}
        fields = [(name, values.get(name, value)) for name, value in form.fields]
        fields += [pressed] if pressed[0] else []
        fields += [self.page.boxes[tick] for tick in ticks]
        if form.method == "get":
            self.opens(f"{form.action}?{urlencode([each for each in fields if each[1]])}")
            return
        sent: dict[str, Any] = {}
        for name, value in fields:
            sent.setdefault(name, []).append(value)
        answer = self.site.post(form.action, sent)
        if answer.status == 303:
            self.opens(answer.headers["Location"])
        else:
            assert answer.status == status, answer.text
            self.page = Page(answer.text)


@pytest.fixture
def reader(make_app: MakeApp, scene: Scene, delayq_broker_url: str) -> Iterator[Reader]:
    app = make_app(extension=False, broker=delayq_broker_url)
    DelayQ(app, web_changes=lambda user, _: user == OPERATOR)
    with serving_pages(app) as site:
        yield Reader(site)


def test_a_task_is_found_moved_and_edited(reader: Reader, scene: Scene) -> None:
    delayq = scene.delayq
    before = delayq.get(scene.waiting)
    assert before is not None

    reader.follows("Scheduled")
    reader.sends("Search", argument="ada")
    reader.follows(scene.waiting)
    assert "It is due at" in reader.page.text
    reader.sends("Move…")
    reader.changes("Move", by="30m")
    reader.follows("See it")
    reader.sends("Edit…")
    reader.changes("Save", args='["bob", 18]')

    after = delayq.get(scene.waiting)
    assert after is not None
    assert ((after.due - before.due).total_seconds(), after.args) == (1800, ["bob", 18])


def test_one_of_a_list_is_cancelled(reader: Reader, scene: Scene) -> None:
    reader.follows("Scheduled")
    reader.sends("Cancel…", f"Choose {scene.waiting}")
    assert f"Cancel: task {scene.waiting}" in reader.page.text
    reader.changes("Cancel")

    assert scene.delayq.get(scene.waiting) is None


def test_the_task_of_a_list_is_paused(reader: Reader, scene: Scene) -> None:
    reader.follows("Scheduled")
    reader.follows("shop.report")
    reader.sends("Pause task shop.report…")
    reader.changes("Pause")

    assert [*scene.delayq.paused().tasks] == ["shop.report"]


def test_a_dead_task_is_replayed_and_a_queue_paused(reader: Reader, scene: Scene) -> None:
    reader.follows("Dead letters")
    reader.follows(scene.dead)
    assert "the card was declined" in reader.page.text
    reader.sends("Replay…")
    reader.changes("Replay", args='["ada"]', to_queue="slow", when="1h")

    reader.follows("Overview")
    reader.sends("Pause… queue slow")
    assert "Pause: queue slow" in reader.page.text
    reader.changes("Pause")

    replayed = scene.delayq.get(scene.dead)
    assert replayed is not None
    assert (replayed.args, replayed.queue) == (["ada"], "slow")
    assert [*scene.delayq.paused().queues] == ["slow"]


def test_entries_and_limits_are_changed(reader: Reader, scene: Scene) -> None:
    delayq = scene.delayq
    reader.follows("Periodic")
    reader.follows("digest")
    reader.sends("Edit…")
    reader.changes("Save", schedule="every 1h")

    reader.follows("Limits")
    reader.sends("Change…")
    reader.changes("Save", limit_rate="5/m")

    entry, limit = delayq.periodic.get("digest"), delayq.limits.get("stripe")
    assert entry is not None
    assert limit.definition is not None
    assert (entry.definition.schedule.run_every.seconds, limit.definition.rate) == (3600, "5/m")
