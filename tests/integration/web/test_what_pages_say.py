"""What lists, forms and outcomes say, to somebody who has read nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from celery import Celery

from celery_delayq import Limit
from celery_delayq.web.actions import ACTIONS
from celery_delayq.web.pages import dead, scheduled
from celery_delayq.web.query import Query
from celery_delayq.web.questions import ask
from celery_delayq.web.site import Site
from tests.integration.web.conftest import Scene
from tests.integration.web.test_changes import DONE, marks, run
from tests.integration.web.test_without_scripts import Page, Reader
from tests.integration.web.test_without_scripts import reader as reader
from tests.support.dead_letters import details, message

#: Forms that begin with what is there.
EDITED = ("edit", "edit_entry", "set_limit")


@pytest.fixture
def site(scene: Scene) -> Iterator[Site]:
    with closing(Site(scene.delayq.app)) as site:
        yield site


def query_of(**fields: str) -> Query:
    return Query("", {name: [text] for name, text in fields.items()})


def form_of(scene: Scene, name: str) -> Query:
    """Return the fields with which a change is asked for."""
    named = marks(scene)
    fields = {each: named.get(text, text) for each, text in DONE[name][0].items()}
    return query_of(action=name, **fields)


def table(site: Site, **fields: str) -> Any:
    """Return the view of scheduled tasks, as often as needed to search all of them."""
    view = scheduled.read(site, query_of(**fields))
    while view.cursor is not None:
        view = scheduled.read(site, query_of(**view.exact_fields, cursor=view.cursor))
    return view


# -- what is asked, and what is said when it is done


@pytest.mark.parametrize("name", ACTIONS)
def test_a_question_names_what_it_changes(prepared: Scene, site: Site, name: str) -> None:
    question, action = ask(site, form_of(prepared, name)), ACTIONS[name]

    assert question.button not in ("Cancel", "Delete", "Replay", "Move", "Edit", "Pause")
    assert question.refusal == ("Keep it" if action.is_dangerous else "No, go back") or (
        question.number > 1 and question.refusal == "Keep them"
    )
    assert bool(question.samples or question.notes) is (action.kind != "entry")
    if name in EDITED:
        assert any(question.values.values())


@pytest.mark.parametrize("name", ACTIONS)
def test_an_outcome_names_what_was_changed(prepared: Scene, site: Site, name: str) -> None:
    query = form_of(prepared, name)
    job = run(site, **{each: texts[0] for each, texts in query.values.items()})

    text = job.done_text(job.done)
    assert text.endswith(ACTIONS[name].done)
    assert not text[0].isdigit() or re.match(r"[\d,]+ (task|dead letter)s?\b", text)
    if any(query.text(each) for each in ACTIONS[name].fields):
        assert job.facts


def test_after_a_move_its_new_time_is_said(scene: Scene, site: Site) -> None:
    job = run(site, action="move", mark=marks(scene)["waiting"], by="2h")

    task = scene.delayq.get(scene.waiting)
    assert task is not None
    assert dict(job.facts) == {"Due": task.due, "State": "scheduled"}


def test_the_form_of_a_move_begins_with_the_present_time(scene: Scene, site: Site) -> None:
    form = {"action": "move", "mark": marks(scene)["waiting"]}
    values = ask(site, query_of(**form)).values
    before = scene.delayq.get(scene.waiting)
    assert before is not None
    assert values["when"] == before.due.strftime("%Y-%m-%dT%H:%M:%S")

    assert run(site, **form, **values | {"by": "1h"}).done == 1

    after = scene.delayq.get(scene.waiting)
    assert after is not None
    assert (after.due - before.due).total_seconds() == 3600


def test_a_form_that_is_sent_as_it_is_edits_nothing(app: Celery, scene: Scene, site: Site) -> None:
    app.send_task("shop.mail", ("ada",), task_id="soon", countdown=900, expires=9000, priority=3)
    found = scene.delayq.get("soon")
    assert found is not None
    mark = f"{round(found.due.timestamp() * 1000)}:soon"
    values = ask(site, query_of(action="edit", mark=mark)).values
    assert {name for name, text in values.items() if text} == {"args", "priority", "expires"}

    with pytest.raises(ValueError, match="change at least one"):
        run(site, action="edit", mark=mark, **values)
    assert run(site, action="edit", mark=mark, **values | {"args": '["bob"]'}).done == 1

    after = scene.delayq.get("soon")
    assert after is not None
    assert (after.args, after.headers["expires"]) == (["bob"], found.headers["expires"])


@pytest.mark.parametrize("text", ["{'user': 7}", "('c-417',)", "[", "{}", "7"])
def test_what_is_no_json_says_where(scene: Scene, site: Site, text: str) -> None:
    form = {"action": "edit", "mark": marks(scene)["waiting"]}
    with pytest.raises(ValueError, match=r"Arguments: expected JSON such as \[1, 2\]"):
        run(site, **form, args=text)
    with pytest.raises(ValueError, match=r"Keywords: expected JSON .* double quotes \(line 1, cha"):
        run(site, **form, kwargs="{'user': 7}")


# -- a wrong form comes again


def test_a_list_comes_again_with_its_filter_and_ticks(reader: Reader, scene: Scene) -> None:
    reader.opens("/delayed/scheduled?task=shop.report")
    ticks = [*reader.page.boxes][:2]

    reader.sends("Move…", status=400)
    assert "Nothing was chosen" in reader.page.text
    assert [*reader.page.boxes][:2] == ticks

    reader.sends("Edit…", *ticks, status=400)
    assert "one at a time" in reader.page.text
    reader.sends("Cancel…", ticks[0])
    reader.follows("Keep it")
    assert [*reader.page.boxes][:2] == ticks


@pytest.mark.full
def test_a_form_comes_again_with_what_was_typed(reader: Reader, scene: Scene) -> None:
    reader.opens(f"/delayed/task/{scene.waiting}")
    reader.sends("Edit…")
    reader.sends("Save", args="[1", status=400)
    assert "expected JSON" in reader.page.text
    assert ("args", "[1") in reader.page.forms[0].fields
    reader.follows("No, go back")
    assert "Why it waits" in reader.page.text

    reader.opens("/delayed/periodic/digest")
    reader.sends("Edit…")
    reader.sends("Save", schedule="at 2020-01-31T09:00", status=400)
    assert "is never due" in reader.page.text
    assert ("schedule", "at 2020-01-31T09:00") in reader.page.forms[0].fields


@pytest.mark.full
@pytest.mark.parametrize("path", ["scheduled?due_from", "dead?died_from"])
def test_a_wrong_search_comes_again(reader: Reader, path: str) -> None:
    answer = reader.site.get(f"/delayed/{path}=tomorrow")

    assert answer.status == 400
    page = Page(answer.text)
    assert "expected a time" in page.text
    assert (path.partition("?")[2], "tomorrow") in page.forms[0].fields


@pytest.mark.full
def test_a_way_back_leads_where_the_form_was(reader: Reader, scene: Scene) -> None:
    reader.opens("/delayed/dead?exception=ValueError")
    reader.sends("Replay…", f"Choose {scene.dead}")
    reader.follows("No, go back")
    assert ("exception", "ValueError") in reader.page.forms[0].fields
    reader.follows(scene.dead)
    reader.sends("Replay…")
    reader.follows("No, go back")
    assert "What became of it" in reader.page.text

    reader.opens("/delayed/dead?exception=ValueError")
    reader.sends("Replay…", f"Choose {scene.dead}")
    reader.sends("Replay", when="1h")
    assert "1 dead letter replayed" in reader.page.text
    assert scene.dead in reader.page.links["See the task"]
    reader.follows("Back to the list")
    assert ("exception", "ValueError") in reader.page.forms[0].fields

    reader.opens("/delayed/scheduled?task=shop.report")
    reader.sends("Pause task")
    assert "3 tasks of it in the schedule" in reader.page.text
    reader.sends("Pause")
    assert "task shop.report paused" in reader.page.text
    reader.follows("Back to the list")
    assert ("task", "shop.report") in reader.page.forms[0].fields
    assert "task paused" in reader.page.text

    for back in ("https://example.org/", "//example.org", "job/x", "nowhere", "task?id=\udcff"):
        fields = {"_xsrf": reader.site.token(), "action": "pause", "queue": "slow", "back": back}
        answer = reader.site.post("/delayed/change", fields)
        assert answer.status == 200
        assert "example.org" not in answer.text


# -- what is found


#: Searches of arguments, and whether they find the task of ada.
SEARCHES = {
    "ada": True,
    "17 ada": True,
    "ada 18": False,
    '"ada\', 17"': True,
    '"17 ada"': False,
    "customer=c-4": True,
    "customer=c-4 ada": True,
    "customer=4": False,
    "order=417": True,
    "{'customer': 'c-4'": True,
    "=": False,
}


@pytest.mark.parametrize("text", SEARCHES)
def test_a_search_takes_words(app: Celery, scene: Scene, site: Site, text: str) -> None:
    given = {"customer": "c-4", "order": 417}
    app.send_task("shop.bill", ("ada", 17), given, task_id="bill", countdown=60)
    body = message("bill", "shop.bill", argsrepr="('ada', 17)", kwargsrepr=repr(given))
    scene.delayq.store.dead_letters.add("celery", "bill", "failed", body, details())

    view = table(site, argument=text, task="shop.bill")
    found = dead.read(site, query_of(argument=text, task="shop.bill"))

    assert ([row.task.id for row in view.rows] == ["bill"]) is SEARCHES[text]
    assert ([row.dead.id for row in found.rows] == ["bill"]) is SEARCHES[text]
    assert (view.found, found.read) == (SEARCHES[text], SEARCHES[text])


def test_a_late_hit_can_be_ticked(
    reader: Reader, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bar is there for the script, which shows the bar with the first row."""
    monkeypatch.setattr(scheduled, "SEARCH_SECONDS", 0)
    monkeypatch.setattr(scheduled, "SEARCH_TASKS", 1)
    scene.delayq.app.send_task("shop.mail", ("last",), task_id="last", countdown=90_000)
    reader.opens("/delayed/scheduled?argument=last")
    while "last" not in reader.page.links:
        assert "Run now…" in reader.page.forms[1].buttons
        reader.follows("Search on")
    assert "1 match" in reader.page.text
    reader.sends("Cancel…", "Choose last")
    assert "Cancel this task" in reader.page.forms[0].buttons


def test_tasks_of_a_limit_and_held_ones_are_found(app: Celery, scene: Scene, site: Site) -> None:
    @app.task(name="shop.sms", limit=Limit("sms", rate="1/h", key="{customer}"), shared=False)
    def sms(customer: str) -> None: ...

    store = scene.delayq.store
    store.task_limits.announce({"sms": sms.limit.definition.text})
    store.register("celery")
    for customer, countdown in (("c-1", 0), ("c-2", 0), ("c-2", 600)):
        id = f"sms {customer} {countdown}"
        sms.apply_async(kwargs={"customer": customer}, countdown=countdown, task_id=id)

    def found(**fields: str) -> list[str]:
        return sorted(row.task.id for row in table(site, **fields).rows)

    assert found(limit="sms") == ["sms c-1 0", "sms c-2 0", "sms c-2 600"]
    assert found(limit="sms", limit_key="c-2") == ["sms c-2 0", "sms c-2 600"]
    assert found(limit="sms", limit_key="c-2", state="held") == ["sms c-2 0"]
    assert found(state="held") == ["sms c-1 0", "sms c-2 0"]
    assert table(site, state="overdue").rows == []


@pytest.mark.full
def test_a_name_that_nothing_has_is_asked_about(reader: Reader, scene: Scene) -> None:
    for page in ("scheduled", "dead"):
        for name, known in (("report", "shop.report"), ("shop.mial", "shop.mail")):
            reader.opens(f"/delayed/{page}?task={name}")
            buttons = [text for form in reader.page.forms for text in form.buttons]
            assert not any(text.startswith("Pause task") for text in buttons)
            if page == "scheduled":
                assert f"task={known}" in reader.page.links[known]


@pytest.mark.full
def test_numbers_lead_to_what_they_count(reader: Reader, scene: Scene) -> None:
    reader.opens("/delayed")
    links = {*reader.page.links.values()}
    for each in ("/delayed/scheduled", "/delayed/scheduled?state=held", "/delayed/dead"):
        assert each in links
    assert "/delayed/limits/stripe" in links
    reader.opens("/delayed/limits")
    assert "/delayed/scheduled?limit=stripe&state=held" in {*reader.page.links.values()}


@pytest.mark.full
def test_a_filtered_list_counts_what_matches(reader: Reader, scene: Scene) -> None:
    store = scene.delayq.store.dead_letters
    store.add("slow", "other", "failed", message("other"), details())
    reader.opens("/delayed/dead?queue=slow")
    assert "1 matches, of 2 dead letters in all" in " ".join(reader.page.text.split())


#: Texts that a page or a question has in this order.
IN_ORDER = {
    "the error before the facts": ("task/mail-3", "", ("dq-traceback", 'id="dq-facts"')),
    "the warning before the button": ("task/mail-3", "Delete…", ("cannot be undone", "Keep it")),
    "what is ticked before the table": ("scheduled", "", ("dq-bar", "<table", "dq-all")),
    "one jump to the page": ("scheduled", "", ('href="#dq-body"', "dq-tabs", 'id="dq-body"')),
    "the zone of a field": ("task/mail-17", "Move…", ("in UTC, where", "datetime-local")),
    "the first field": ("task/mail-17", "Edit…", ('name="args"', " autofocus", 'name="kwargs"')),
    "queues of a phone": ("", "", ('class="dq-cards"', 'data-title="Running"', "Pause…")),
}


@pytest.mark.full
@pytest.mark.parametrize("what", IN_ORDER)
def test_a_page_has_its_parts_in_order(reader: Reader, what: str) -> None:
    path, button, parts = IN_ORDER[what]
    reader.opens(f"/delayed/{path}")
    if button:
        reader.sends(button)

    places = [reader.page.html.find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)
