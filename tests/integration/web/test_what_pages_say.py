"""What lists, forms and outcomes say, to somebody who has read nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import datetime, timedelta, timezone
from html import unescape
from typing import Any
from urllib.parse import urlsplit

import pytest
from celery import Celery

from celery_delayq import DelayQ, Filter, Limit
from celery_delayq.testing import wait_until
from celery_delayq.web.actions import ACTIONS
from celery_delayq.web.pages import dead, scheduled
from celery_delayq.web.query import Query
from celery_delayq.web.questions import ask
from celery_delayq.web.site import Site
from tests.integration.conftest import MakeApp
from tests.integration.web.conftest import Scene
from tests.integration.web.test_changes import DONE, marks, run
from tests.integration.web.test_without_scripts import Page, Reader
from tests.integration.web.test_without_scripts import reader as reader
from tests.support import TIMEOUT
from tests.support.dead_letters import details, message
from tests.support.flower import OPERATOR, serving_pages

#: Buttons of forms that are saved.
EDITING = ("Edit…", "Change…")

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
def test_a_question_has_the_focus_where_enter_destroys_nothing(
    prepared: Scene, reader: Reader, name: str
) -> None:
    fields = {each: texts[0] for each, texts in form_of(prepared, name).values.items()}
    fields |= dict.fromkeys(ACTIONS[name].fields, "")
    answer = reader.site.post("/delayed/change", {**fields, "_xsrf": reader.site.token()})

    (focused,) = re.findall(r"<(\w+) [^>]*autofocus>", answer.text)
    if ACTIONS[name].fields:
        assert focused in ("input", "textarea")
    else:
        assert focused == ("a" if ACTIONS[name].is_dangerous else "button")


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
    answer = reader.site.get(f"/delayed/{path}=soon")

    assert answer.status == 400
    page = Page(answer.text)
    assert "expected a time" in page.text
    assert (path.partition("?")[2], "soon") in page.forms[0].fields


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


def test_a_task_of_a_paused_queue_leads_to_its_resume(reader: Reader, scene: Scene) -> None:
    path = f"/delayed/task/{scene.elsewhere}"
    reader.opens(path)
    assert "Resume queue" not in reader.page.text

    scene.delayq.pause(queue="slow")
    reader.opens(path)
    reader.sends("Resume queue slow…")
    reader.changes("Resume queue slow")
    assert re.findall(r"<(\w+) [^>]*autofocus>", reader.page.html) == ["a"]
    reader.follows("See it")
    assert not scene.delayq.paused().queues


@pytest.mark.parametrize("paused", [{"other"}, {"slow"}, {"slow", "other"}])
def test_a_task_in_two_queues_leads_to_the_resume_of_each(
    app: Celery, reader: Reader, scene: Scene, paused: set[str]
) -> None:
    for countdown, queue in ((60, "slow"), (120, "other")):
        app.send_task("shop.mail", task_id="both", queue=queue, countdown=countdown)
    for queue in paused:
        scene.delayq.pause(queue=queue)

    reader.opens("/delayed/task/both")
    texts = {text for form in reader.page.forms for text in form.buttons}
    found = {text for text in texts if text.startswith("Resume queue")}
    assert found == {f"Resume queue {queue}…" for queue in paused}
    for queue in paused:
        reader.opens("/delayed/task/both")
        reader.sends(f"Resume queue {queue}…")
        reader.changes(f"Resume queue {queue}")
    assert not scene.delayq.paused().queues


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
    "customer=c-": False,
    "customer=C-4": False,
    "customer": True,
    "CUSTOMER": True,
    "order=417": True,
    "order=41": False,
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


def test_a_search_knows_the_names_of_positional_arguments(
    app: Celery, delayq: DelayQ, scene: Scene, site: Site
) -> None:
    @app.task(name="shop.pay", shared=False)
    def pay(order: int, customer: str, *more: str) -> None: ...

    @app.task(name="shop.move", shared=False)
    def move(order: int, customer: str) -> None: ...

    pay.apply_async((1, "c-4"), task_id="place", countdown=60)
    pay.apply_async((2,), {"customer": "c-4"}, task_id="keyword", countdown=61)
    pay.apply_async((3, "c-5", "c-4"), task_id="other place", countdown=62)
    move.apply_async((4, "c-4"), task_id="other task", countdown=63)
    move.apply_async((5, "c-4"), task_id="hidden", countdown=64, argsrepr="(5, ***)")
    app.send_task("shop.unknown", (6, "c-4"), task_id="unknown", countdown=65)
    body = message("c-4", "shop.swap", argsrepr="('c-4', '')")
    delayq.store.dead_letters.add("celery", "dead", "failed", body, details())

    @app.task(name="shop.swap", shared=False)
    def swap(customer: str, note: str) -> None: ...

    found = [row.task.id for row in table(site, argument="customer=c-4").rows]
    assert found == ["place", "keyword", "other task"]
    dead_letters = dead.read(site, query_of(argument="customer=c-4"))
    assert [row.dead.id for row in dead_letters.rows] == ["dead"]


#: Texts in which a sender hides the second of the arguments ``("ada", VALUE)``, or none.
OWN_TEXTS = {"(***, 4112)": False, "('ada', '4112')": False, "(...)": False, "": True}


@pytest.mark.parametrize("text", OWN_TEXTS)
def test_a_search_confirms_no_hidden_argument(
    app: Celery, scene: Scene, site: Site, text: str
) -> None:
    @app.task(name="shop.card", shared=False)
    def card(owner: str, pin: object, **more: object) -> None: ...

    values = (4, 41, True, 1, "", "4", "x" * 5000)
    own = {"argsrepr": text, "kwargsrepr": "{...}"} if text else {}
    for number, value in enumerate(values):
        options = {"task_id": f"card {number}", "countdown": 60, **own}
        card.apply_async(("ada", value), {"code": value}, **options)

    for number, value in enumerate(values):
        for words in (f"pin={value}", f"code={value}", f"'code': {value!r}"):
            found = {row.task.id for row in table(site, argument=words, task="shop.card").rows}
            assert (f"card {number}" in found) is OWN_TEXTS[text], words


@pytest.mark.parametrize(("state", "typed"), [("held", ""), ("held", "tomorrow"), ("", "tomorrow")])
def test_a_search_shows_the_time_that_was_typed(
    reader: Reader, scene: Scene, state: str, typed: str
) -> None:
    reader.opens(f"/delayed/scheduled?state={state}&due_to={typed}")

    [(_, read)] = re.findall(r'name="(due_to)"[^>]*>(?:<small[^>]*>([^<]+)<)?', reader.page.html)
    tomorrow = utc_now() + timedelta(days=1)
    assert read == (f"{tomorrow:%Y-%m-%d} 00:00:00" if typed else "")


def test_an_unknown_state_is_refused(reader: Reader, scene: Scene) -> None:
    answer = reader.site.get("/delayed/scheduled?state=foo")

    assert answer.status == 400
    assert "expected held, held_by_limit, overdue" in Page(answer.text).text


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


#: What pauses beside a limit.
PAUSES: Mapping[str, Mapping[str, str]] = {
    "nothing": {},
    "the queue": {"queue": "celery"},
    "the task": {"task": "shop.sms"},
}


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


@pytest.mark.parametrize("paused", PAUSES)
@pytest.mark.parametrize("is_first", [True, False], ids=["before", "after"])
def test_the_number_of_a_limit_leads_to_what_it_holds(
    app: Celery, reader: Reader, scene: Scene, paused: str, is_first: bool
) -> None:
    @app.task(name="shop.sms", limit=Limit("sms", rate="1/h", key="{0}"), shared=False)
    def sms(customer: str) -> None: ...

    delayq, store = scene.delayq, scene.delayq.store
    store.task_limits.announce({"sms": sms.limit.definition.text})
    store.register("celery")
    if PAUSES[paused] and is_first:
        delayq.pause(**PAUSES[paused])
    for number in range(3):
        sms.apply_async(("c-1",), task_id=f"sms {number}", countdown=0.001)
    app.send_task("shop.report", countdown=0.001)
    wait_until(lambda: delayq.count(Filter(due_to=utc_now())) == 4, timeout=TIMEOUT)
    store.promote("celery", store.layout, 100)
    if PAUSES[paused] and not is_first:
        delayq.pause(**PAUSES[paused])

    held = delayq.limits.get("sms").held
    assert held == (0 if PAUSES[paused] and is_first else 3)
    for path in ("", "/limits", "/limits/sms"):
        html = reader.site.get(f"/delayed{path}").text
        found = {unescape(url) for url in re.findall(r'href="([^"]+limit=sms[^"]*)"', html)}
        assert bool(found) is bool(held)
        assert {counted_on(reader.site.get(url).text) for url in found} <= {held}


@pytest.mark.full
def test_a_name_that_nothing_has_is_asked_about(reader: Reader, scene: Scene) -> None:
    for page in ("scheduled", "dead"):
        for name, known in (("report", "shop.report"), ("shop.mial", "shop.mail")):
            reader.opens(f"/delayed/{page}?task={name}")
            buttons = [text for form in reader.page.forms for text in form.buttons]
            assert not any(text.startswith("Pause task") for text in buttons)
            if page == "scheduled":
                assert f"task={known}" in reader.page.links[known]


#: Numbers that lead nowhere: nothing lists what they count. The page says why.
UNLISTED = {"Ready", "Oldest", "In/min", "Out/min", "In use", "Rate", "At the same time"}


def counted_on(html: str) -> int:
    """Return how many tasks, dead letters or messages a page says that it lists."""
    text = " ".join(Page(html).text.split())
    if "Processes with leases" in text:
        return sum(map(int, re.findall(r"<th [^>]*dq-code[^<]*</th><td>(\d+)</td>", html)))
    if "Nothing that is scheduled matches." in text:
        return 0
    # What matches comes first: a search also says how many tasks there are.
    texts = (r"([\d,]+) match(?:es)?[ .,]", r"([\d,]+) in all\.", r"([\d,]+) tasks?[.,]")
    found = next(match for each in texts if (match := re.search(each, text)))
    return int(found[1].replace(",", ""))


@pytest.mark.full
def test_each_number_leads_to_what_it_counts(app: Celery, reader: Reader, scene: Scene) -> None:
    app.send_task("shop.mail", countdown=0.001, task_id="late")
    app.send_task("shop.mail", countdown=0.001, queue="slow")
    scene.delayq.pause(queue="slow")
    assert scene.delayq.store.leases.acquire("celery", "me", 30.0, "1", 1, has_limits=True).messages
    html = reader.site.get("/delayed").text

    links = re.findall(r'<a href="([^"]+)">([\d,]+)</a>', html)
    wrong = {
        (url, number)
        for url, number in links
        if int(number) != counted_on(reader.site.get(unescape(url)).text)
    }
    assert wrong == set()
    places = {urlsplit(unescape(url)).path for url, _ in links}
    assert places >= {f"/delayed/{name}" for name in ("scheduled", "dead", "fleet")}
    cells = re.findall(r'<td data-title="([^"]+)"[^>]*>([\d,.]+)</td>', html)
    tiles = re.findall(r"<dt>([^<]+)</dt><dd>([\d,]+)</dd>", html)
    assert {title for title, number in cells + tiles if number != "0"} <= UNLISTED
    assert "so there is no list" in html


#: A field that a page marks as wrong.
MARKED_FIELD = re.compile(r'name="(\w+)"[^>]* aria-invalid="true" aria-describedby="dq-error"')

#: Forms with a wrong value: page, button, field and value.
WRONG_VALUES = [
    ("task/mail-17", "Edit…", "args", "{"),
    ("task/mail-17", "Edit…", "kwargs", "[]"),
    ("task/mail-17", "Edit…", "priority", "high"),
    ("task/mail-17", "Edit…", "expires", "soon"),
    ("task/mail-17", "Move…", "by", "soon"),
    ("task/mail-17", "Move…", "when", "soon"),
    ("task/mail-3", "Replay…", "when", "soon"),
    ("task/mail-3", "Replay…", "args", "7"),
    ("dead", "Replay all…", "rate", "fast"),
    ("dead", "Replay all…", "rate", "-1"),
    ("periodic/digest", "Edit…", "schedule", "soon"),
    ("limits/stripe", "Change…", "limit_rate", "often"),
    ("limits/stripe", "Change…", "limit_rate", "0/m"),
    ("limits/stripe", "Change…", "burst", "0"),
    ("limits/stripe", "Change…", "burst", "many"),
    ("limits/stripe", "Change…", "concurrency", "0"),
]


@pytest.mark.full
@pytest.mark.parametrize(("path", "button", "name", "value"), WRONG_VALUES)
def test_an_error_stands_beside_its_field(
    reader: Reader, scene: Scene, path: str, button: str, name: str, value: str
) -> None:
    reader.opens(f"/delayed/{path}")
    reader.sends(button)
    saving = "Save" if button in EDITING else button.split()[0].removesuffix("…")
    reader.sends(saving, status=400, **{name: value})

    html = reader.page.html
    assert MARKED_FIELD.findall(html) == [name]
    assert f'<a href="#dq-field-{name}">' in html
    [error] = re.findall(r'id="dq-error">([^<]+)<', html)
    assert "expected" in error
    assert name in {each for form in reader.page.forms for each, text in form.fields if text}


@pytest.mark.full
@pytest.mark.parametrize(
    ("given", "marked"),
    [
        # Whatever a value contains, it is the arguments that do not fit.
        ({"kwargs": '{"to": "ada", "also": "queue=x, priority=3"}'}, ["args", "kwargs"]),
        ({"args": '["ada", 17, "kwargs="]'}, ["args", "kwargs"]),
        ({"args": '"priority=3"'}, ["args"]),
        ({"priority": "args=1, kwargs=2"}, ["priority"]),
    ],
)
def test_an_error_about_a_call_stands_beside_its_arguments(
    scene: Scene, make_app: MakeApp, given: dict[str, str], marked: list[str]
) -> None:
    app = make_app(extension=False, broker=scene.delayq.app.conf.broker_url)
    DelayQ(app, web_changes=lambda user, _: user == OPERATOR)

    @app.task(name="shop.mail", shared=False)
    def mail(to: str, number: int) -> None:
        """Stand for any task with arguments."""

    with serving_pages(app) as site:
        reader = Reader(site)
        reader.opens("/delayed/task/mail-17")
        reader.sends("Edit…")
        reader.sends("Save", status=400, **given)

    assert MARKED_FIELD.findall(reader.page.html) == marked
    assert re.findall(r'<a href="#dq-field-(\w+)">', reader.page.html) == marked


@pytest.mark.full
def test_a_filtered_list_counts_what_matches(reader: Reader, scene: Scene) -> None:
    store = scene.delayq.store.dead_letters
    store.add("slow", "other", "failed", message("other"), details())
    reader.opens("/delayed/dead?queue=slow")
    assert "1 match, of 2 dead letters in all" in " ".join(reader.page.text.split())


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
