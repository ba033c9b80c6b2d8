"""``rewrite`` gives all calls that wait to a function, and changes each message once or not."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from redis import Redis

from celery_delayq import DelayQ, Limit
from celery_delayq.admin import rewrite as module
from celery_delayq.admin.rewrite import PAGE_ENTRIES, RewriteOutcome, RewriteReport
from celery_delayq.errors import ConfigError, InvalidCursor, InvalidFilter
from celery_delayq.model.changes.body import Body
from celery_delayq.model.changes.calls import WaitingCall
from celery_delayq.model.compat.binding import Verdict
from celery_delayq.model.scheduled import Outcome
from celery_delayq.store import control
from tests.integration.admin.conftest import Version
from tests.integration.conftest import MakeApp
from tests.support.dead_letters import AT, details, message, packed, stored
from tests.support.lazy import TASK, is_imported, lazy_app


def serve(tenant: str) -> None:
    """Stand for any task."""


def no_arguments() -> None:
    """Stand for a task without arguments."""


class NeverEqual(int):
    """A value that cannot be compared."""

    __hash__ = int.__hash__

    def __eq__(self, _: object) -> bool:
        raise RuntimeError("not equal")


def send_numbers(delayq: DelayQ, number: int, queue: str = "celery") -> None:
    items = [{"args": (n,), "countdown": 1000 + n, "id": f"{queue} {n}"} for n in range(number)]
    delayq.schedule_many(items, task="mail.remind", queue=queue)


def add_more(call: WaitingCall) -> dict[str, Any] | None:
    return None if "more" in call.kwargs else {"kwargs": {**call.kwargs, "more": "b"}}


def kwargs_of(delayq: DelayQ) -> dict[str, Any]:
    return {each.id: each.as_dict()["kwargs"] for each in delayq.entries()}


def test_a_function_gets_each_call_of_its_task(client: Version) -> None:
    after = client("after")
    remind, total = after.app.tasks["mail.remind"], after.app.tasks["mail.total"]
    remind.apply_async(("a",), {"more": 1}, countdown=60, task_id="a", link=remind.s("b"))
    total.apply_async(([],), countdown=120, task_id="t", link=remind.si("c"), queue="mail")
    total.apply_async(([],), countdown=180, task_id="u")
    after.periodic.add("entry", 3600, "mail.remind", ("d",))
    calls: list[WaitingCall] = []

    def note(call: WaitingCall) -> None:
        calls.append(call)

    report = after.rewrite(note, task="mail.remind")

    assert (report.looked, report.outcomes.total()) == (4, 0)
    assert {(each.id, each.part, each.args, each.place) for each in calls} == {
        ("a", "message", ("a",), "scheduled"),
        ("a", "callback", ("b",), "scheduled"),
        ("t", "callback", ("c",), "scheduled"),
        ("entry", "message", ("d",), "periodic"),
    }
    [whole] = [each for each in calls if each.id == "a" and each.part == "message"]
    entry = after.get("a")
    assert entry is not None
    assert (whole.task, whole.kwargs, whole.due) == ("mail.remind", {"more": 1}, entry.due)
    calls.clear()
    after.rewrite(note, queue="mail")
    assert [(each.id, each.task) for each in calls] == [("t", "mail.remind"), ("t", "mail.total")]
    calls.clear()
    after.rewrite(note, due_to=entry.due)
    assert {each.id for each in calls} == {"a"}


@pytest.mark.parametrize(
    "changes",
    [
        {"args": ["new"], "kwargs": {"more": 5}},
        {"args": ("new",)},
        {"kwargs": {"more": [1, {"é": None}]}},
        {"priority": 6},
        {"headers": {"tenant": "a"}, "expires": 600},
        {"task": "mail.total", "args": [[1]], "kwargs": {}},
    ],
)
def test_changes_of_a_message_are_those_of_an_update(
    client: Version, changes: dict[str, Any]
) -> None:
    after = client("after")
    for id in ("a", "b"):
        after.app.tasks["mail.remind"].apply_async(("old",), {"more": 1}, countdown=60, task_id=id)

    report = after.rewrite(lambda call: changes if call.id == "a" else None)
    assert report.outcomes == {Outcome.DONE: 1}
    if "task" in changes:
        assert after.count(task="mail.total") == 1
        return
    after.update("b", **changes)

    found = []
    for id in ("a", "b"):
        entry = after.get(id)
        assert entry is not None
        shown = entry.as_dict()
        found.append(
            {
                **{name: shown[name] for name in ("task", "args", "kwargs", "priority")},
                **{name: entry.headers.get(name) for name in ("argsrepr", "kwargsrepr", "tenant")},
            }
        )
    assert found[0] == found[1]


def test_a_rewrite_moves_unique_keys_and_lanes(client: Version) -> None:
    after = client("after")
    limit = Limit("one", rate=1, key="{tenant}")
    after.app.task(name="limited", shared=False, limit=limit, acks_late=True)(serve)
    after.app.tasks["mail.unique"].apply_async(("old",), countdown=60, task_id="u")
    after.app.tasks["limited"].apply_async(("old",), countdown=60, task_id="l")

    assert after.rewrite(lambda _: {"args": ["new"]}).is_complete

    unique, limited = after.get("u"), after.get("l")
    assert unique is not None
    assert limited is not None
    assert unique.unique_key == "mail.unique:new"
    assert limited.limit_key == "new"


@pytest.mark.parametrize("stop", [False, True])
def test_a_function_that_fails_at_the_500th(client: Version, stop: bool) -> None:
    after = client("after")
    send_numbers(after, PAGE_ENTRIES + 120)
    outcomes: list[RewriteOutcome] = []

    def fails_at_500th(call: WaitingCall) -> dict[str, Any] | None:
        if call.args == (499,):
            raise ValueError("as told")
        return add_more(call)

    dry = after.rewrite(fails_at_500th, dry_run=True)
    assert (dry.done, dry.failed) == (PAGE_ENTRIES + 119, 1)
    report = after.rewrite(fails_at_500th, stop_on_error=stop, on_outcome=outcomes.append)

    [failure] = report.failures
    assert failure.id == "celery 499"
    assert re.fullmatch(r"ValueError: as told \(test_rewrite\.py, line \d+\)", failure.problem)
    assert not report.is_complete
    assert report.done == (PAGE_ENTRIES - 1 if stop else PAGE_ENTRIES + 119)
    assert len(outcomes) == report.done + 1
    if stop:
        report = after.rewrite(fails_at_500th, resume=report.cursor)
        assert (report.looked, report.failed, report.cursor) == (PAGE_ENTRIES + 120, 1, None)
    found = kwargs_of(after)
    assert found.pop("celery 499") == {}
    assert set(map(str, found.values())) == {"{'more': 'b'}"}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (5, "expected None, or a dict with"),
        ({"arg": [1]}, "expected None, or a dict with"),
        ({"args": "a"}, "expected a list"),
        ({"kwargs": {1: 2}}, "expected arguments by name"),
        ({"task": ""}, "expected the name of a task"),
        ({"args": [1, 2, 3, 4]}, "does not take"),
        ({"args": [object()]}, "cannot encode"),
        ({"priority": "high"}, "expected a whole number"),
    ],
)
def test_an_answer_that_is_no_change_is_a_failure(
    client: Version, answer: Any, problem: str
) -> None:
    after = client("after")
    send_numbers(after, 2)

    report = after.rewrite(lambda call: answer if call.args == (0,) else None)

    assert (report.done, report.failed, report.looked) == (0, 1, 2)
    assert problem in report.failures[0].problem
    assert set(map(str, kwargs_of(after).values())) == {"{}"}


@pytest.mark.parametrize("kind", ["positional", "named"])
@pytest.mark.parametrize(
    "part",
    ["message", "callback", "immutable", "errback", "chain", "group", "chord body", "periodic"],
)
def test_no_part_gets_arguments_that_its_task_does_not_take(
    client: Version, part: str, kind: str
) -> None:
    """``mail.remind`` takes two arguments. For a callback, the first one is a result."""
    after = client("after")
    remind, total = after.app.tasks["mail.remind"], after.app.tasks["mail.total"]
    takes = 2 if part in ("message", "immutable", "group", "periodic") else 1
    first = total.s([]).set(countdown=60)
    if part == "periodic":
        after.periodic.add("entry", 3600, "mail.remind", ("a",))
    elif part == "message":
        remind.s("a").apply_async(countdown=60)
    elif part in ("callback", "immutable"):
        link = remind.si("a") if part == "immutable" else remind.s()
        total.apply_async(([],), countdown=60, link=link)
    elif part == "errback":
        total.apply_async(([],), countdown=60, link_error=remind.s())
    elif part == "chain":
        chain(total.s([]), total.s(), remind.s()).apply_async(countdown=60)
    elif part == "group":
        chain(first, total.s(), group(remind.si("a"), total.si([]))).apply_async(countdown=60)
    else:
        chain(first, chord([total.si([])], remind.s())).apply_async(countdown=60)
    before = [each.message for each in after.entries()], after.periodic.get("entry")
    answers: dict[bool, dict[str, Any]] = {
        False: {"args": ["b"] * takes} if kind == "positional" else {"kwargs": {"more": 1}},
        True: {"args": ["b"] * (takes + 1)} if kind == "positional" else {"kwargs": {"nope": 1}},
    }

    refused = after.rewrite(lambda _: answers[True], task="mail.remind")

    assert (refused.done, refused.failed) == (0, 1)
    problem = refused.failures[0].problem
    assert "mail.remind: args=" in problem
    assert "the task does not take the arguments" in problem
    assert ([each.message for each in after.entries()], after.periodic.get("entry")) == before
    assert after.rewrite(lambda _: answers[False], task="mail.remind").done == 1
    assert after.compat().fails == 0


def test_a_task_that_does_not_take_the_stored_arguments_is_refused(client: Version) -> None:
    after = client("after")
    after.app.task(name="mail.none", shared=False)(no_arguments)
    remind, total = after.app.tasks["mail.remind"], after.app.tasks["mail.total"]
    remind.apply_async(("a",), countdown=60, task_id="message")
    total.apply_async(([],), countdown=60, link=remind.s(), task_id="callback")
    remind.map(["a"]).apply_async(countdown=60, task_id="map")

    report = after.rewrite(lambda _: {"task": "mail.none"}, task="mail.remind")

    assert {each.id for each in report.failures} == {"message", "callback", "map"}
    assert (report.done, after.compat().fails) == (0, 0)


def test_a_task_without_typing_takes_any_arguments(client: Version) -> None:
    after = client("after")
    remind, total = after.app.tasks["mail.remind"], after.app.tasks["mail.total"]
    remind.typing = False
    remind.apply_async(("a",), countdown=60)
    total.apply_async(([],), countdown=60, link=remind.s())

    assert after.rewrite(lambda _: {"kwargs": {"nope": 1}}, task="mail.remind").done == 2


def test_an_error_in_a_signature_names_its_place_and_the_line(client: Version) -> None:
    after = client("after")
    remind, total = after.app.tasks["mail.remind"], after.app.tasks["mail.total"]
    total.apply_async(([],), countdown=60, link=remind.s())
    [failure] = after.rewrite(lambda _: {"arg": 5}, task="mail.remind").failures
    assert failure.problem.startswith("callback, mail.remind: it returned ")
    [failure] = after.rewrite(lambda call: call.kwargs["x"], task="mail.remind").failures
    assert re.search(
        r"^callback, mail.remind: KeyError: 'x' \(test_rewrite\.py, line \d+\)$", failure.problem
    )


def test_a_value_that_cannot_be_compared_is_a_failure(client: Version) -> None:
    after = client("after")
    for id, key in (("a", NeverEqual(5)), ("b", "plain")):
        after.app.tasks["mail.remind"].apply_async(
            (key,), countdown=60, task_id=id, serializer="pickle"
        )

    report = after.rewrite(lambda call: {"args": [*call.args], "priority": 3}, unpickle=True)

    assert [(each.id, each.problem) for each in report.failures] == [
        ("a", "RuntimeError: not equal")
    ]
    assert (report.looked, report.done) == (2, 1)


def test_two_rewrites_at_once_are_one(client: Version, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one runs from the first to the last message while the first has read a page."""
    monkeypatch.setattr(module, "PAGE_ENTRIES", 20)
    first, second = client("after"), client("after")
    send_numbers(first, 50)
    reports: list[RewriteReport] = []

    def run_the_second(call: WaitingCall) -> dict[str, Any] | None:
        if call.args == (10,):
            reports.append(second.rewrite(add_more))
        return add_more(call)

    report = first.rewrite(run_the_second)

    assert [each.outcomes for each in reports] == [{Outcome.DONE: 50}]
    assert report.outcomes == {Outcome.CHANGED: 20}  # and the other pages were right
    assert set(map(str, kwargs_of(first).values())) == {"{'more': 'b'}"}


def test_what_others_change_meanwhile_is_theirs(client: Version) -> None:
    after, other = client("after"), client("after")
    send_numbers(after, 6)

    def interfering(call: WaitingCall) -> dict[str, Any] | None:
        if call.args == (0,):
            other.cancel(call.id)
        elif call.args == (1,):
            other.run_now(call.id)
        elif call.args == (2,):
            other.update(call.id, args=["theirs"])
        elif call.args == (3,):
            other.reschedule(call.id, countdown=9999)
        return add_more(call)

    outcomes: dict[str, Any] = {}
    report = after.rewrite(
        interfering, on_outcome=lambda each: outcomes.update({each.id: each.outcome})
    )

    assert outcomes == {
        "celery 0": Outcome.UNKNOWN,
        "celery 1": Outcome.READY,
        "celery 2": Outcome.CHANGED,
        "celery 3": Outcome.DONE,
        "celery 4": Outcome.DONE,
        "celery 5": Outcome.DONE,
    }
    assert not report.is_complete
    entry = after.get("celery 2")
    assert entry is not None
    assert entry.as_dict()["args"] == ["theirs"]


class Interrupted(BaseException):
    """What a person does with Ctrl-C."""


@pytest.mark.parametrize("pages", [1, 2, 3])
def test_an_interrupted_rewrite_continues(client: Version, pages: int) -> None:
    after = client("after")
    for queue in ("celery", "mail"):
        send_numbers(after, PAGE_ENTRIES + 10, queue)
    latest: list[RewriteReport] = []
    number = 0

    def progress(report: RewriteReport) -> None:
        nonlocal number
        latest.append(report)
        number += 1
        if number == pages:
            raise Interrupted

    with pytest.raises(Interrupted):
        after.rewrite(add_more, progress=progress)
    cursor, looked = latest[-1].cursor, latest[-1].looked
    with pytest.raises(InvalidCursor, match="resume the same rewrite"):
        after.rewrite(add_more, queue="mail", resume=cursor)

    report = after.rewrite(add_more, resume=cursor)

    assert looked + report.looked == 2 * (PAGE_ENTRIES + 10)
    assert set(map(str, kwargs_of(after).values())) == {"{'more': 'b'}"}


def keep_dead(delayq: DelayQ, id: str, data: bytes, queue: str = "celery", at: int = AT) -> None:
    delayq.store.register(queue)
    delayq.store.dead_letters.restore(queue, [(id, at, data)])


@pytest.mark.parametrize("stop", range(1, 9))
def test_a_rewrite_continues_behind_any_dead_letter(
    client: Version, redis: Redis, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    """An unreadable one has no time of death of its own, and a score may be infinite."""
    monkeypatch.setattr(module, "DEAD_LETTER_BATCH", 1)
    after = client("after")
    readable = []
    for number, score in enumerate(("-inf", "0", f"{AT}", f"{AT}", f"{AT}.5", "inf", "inf", "5")):
        id, queue = f"id-{number}", ("celery", "mail")[number % 2]
        if number % 3 == 1:
            data = b"\xff no dead letter"
        else:
            readable.append(id)
            data = stored(AT, "it failed", message(id, "mail.remind"))
        keep_dead(after, id, data, queue)
        redis.zadd(f"{{{queue}}}:dead_at", {id: float(score)})
    called: list[str] = []
    latest: list[RewriteReport] = []

    def note(call: WaitingCall) -> None:
        called.append(call.id)

    def progress(report: RewriteReport) -> None:
        latest.append(report)
        if report.looked == stop:
            raise Interrupted

    with pytest.raises(Interrupted):
        after.rewrite(note, progress=progress)
    report = after.rewrite(note, resume=latest[-1].cursor)

    assert sorted(called) == readable
    assert latest[-1].looked + report.looked == 8
    assert latest[-1].unknown + report.unknown == 3


#: Messages in which no name of a task is found, by name.
NAMELESS = {
    "protocol 1": packed({"task": "mail.remind", "id": "a", "args": [1], "kwargs": {}}, {}, {}),
    "no headers": packed([[], {}, {}], None, {}),
    "headers of a list": packed([[], {}, {}], [1], {}),
    "a name that is no text": packed([[], {}, {}], {"task": 5, "id": "a"}, {}),
    "no message": b"\xff",
    "no object": b"[]",
}


@pytest.mark.parametrize("name", NAMELESS)
def test_a_message_without_the_name_of_a_task_is_counted_and_stays(
    client: Version, name: str
) -> None:
    after = client("after")
    data = stored(AT, "it failed", NAMELESS[name])
    keep_dead(after, "nameless", data)
    keep_dead(after, "other", stored(AT, "it failed", message("other", "mail.remind")))

    def first_only(call: WaitingCall) -> dict[str, Any] | None:
        return {"args": call.args[:1]} if len(call.args) > 1 else None

    reports = [
        after.rewrite(first_only, task="mail.remind"),
        after.rename("mail.remind", "mail.unique"),
        after.rewrite(first_only),
    ]

    for report in reports:
        assert (report.looked, report.unknown, report.failed) == (2, 1, 0)
        assert report.as_dict()["unknown"] == 1
        assert report.is_complete
    assert [report.done for report in reports] == [1, 1, 0]
    [kept] = [each for each in after.dead_letters() if each.id == "nameless"]
    assert kept.dead_lettered.data == data
    compat = after.compat()
    assert compat.looked["dead"] == 2
    problems = {row.problem.verdict for row in compat.rows if row.ids == ["nameless"]}
    is_other = name in ("protocol 1", "a name that is no text")
    assert problems == {Verdict.OTHER_PROTOCOL if is_other else Verdict.UNREADABLE}


def test_wrong_calls_are_refused(client: Version) -> None:
    after = client("after")
    with pytest.raises(ConfigError, match="expected a function"):
        after.rewrite("module:function")  # type: ignore[arg-type]
    with pytest.raises(InvalidCursor, match="no cursor"):
        after.rewrite(add_more, resume="x")
    with pytest.raises(InvalidFilter, match="task=''"):
        after.rewrite(add_more, task="")
    with pytest.raises(InvalidFilter, match="cannot search by argument"):
        after.rewrite(add_more, arg={"a": 1})  # type: ignore[call-arg]


def test_a_rewrite_reads_what_others_may_not_decode(client: Version, app: Celery) -> None:
    after = client("after")
    after.app.send_task("x", ("a",), serializer="pickle", countdown=60, task_id="p")
    after.store.client.hset("{celery}:entries", "garbage", b"no record")
    after.store.client.zadd("{celery}:due", {"garbage": 10**12})

    report = after.rewrite(add_more)
    assert (report.looked, report.failed) == (2, 1)
    assert "unpickle=True" in report.failures[0].problem
    assert after.rewrite(add_more, unpickle=True).done == 1
    assert after.count(queue="celery") == 2


#: Values that are equal, or nearly so, and are encoded in different ways.
SAME: list[list[Any]] = [
    [1, 1.0, True, Decimal(1), Decimal("1.0")],
    [0.0, -0.0, False],
    [
        datetime(2030, 1, 31, 12, tzinfo=timezone.utc),
        datetime(2030, 1, 31, 13, tzinfo=timezone(timedelta(hours=1))),
    ],
    [{1: "a"}, {True: "a"}],
    [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
]


#: The forms in which a value is an argument, or inside an argument.
FORMS: list[Callable[[Any], Any]] = [
    lambda value: value,
    lambda value: [[value]],
    lambda value: {"a": {"b": value}},
]


def test_a_value_of_another_type_is_a_change(client: Version) -> None:
    pairs = [
        (form(one), form(other))
        for values in SAME
        for one in values
        for other in values
        for form in FORMS
    ]
    delayq = client("after")
    remind = delayq.app.tasks["mail.remind"]
    for n, (before, _) in enumerate(pairs):
        remind.apply_async((before,), countdown=60, task_id=f"{n}", serializer="pickle")

    report = delayq.rewrite(lambda call: {"args": [pairs[int(call.id)][1]]}, unpickle=True)

    assert report.failures == []
    assert report.done == sum(repr(before) != repr(after) for before, after in pairs)
    for each in delayq.entries():
        _, after = pairs[int(each.id)]
        assert repr(Body.of(each.message or {}, unpickle=True).args[0]) == repr(after)


def test_a_change_of_type_in_a_periodic_entry_and_in_a_signature(client: Version) -> None:
    delayq = client("after")
    remind = delayq.app.tasks["mail.remind"]
    delayq.app.tasks["mail.total"].apply_async(([],), link=remind.s(1), countdown=60)
    delayq.periodic.add("entry", 3600, "mail.remind", (1,))

    report = delayq.rewrite(lambda _: {"args": [True]}, task="mail.remind")

    assert report.outcomes == {Outcome.DONE: 2}
    entry = delayq.periodic.get("entry")
    assert entry is not None
    assert [*entry.definition.args] == [True]
    assert entry.definition.args[0] is True
    [message] = [each.message for each in delayq.entries()]
    [link] = Body.of(message or {}).embedded["callbacks"]
    assert link["args"][0] is True
    assert delayq.rewrite(lambda _: {"args": [True]}, task="mail.remind").outcomes == {}


@pytest.mark.parametrize("where", ["callback", "periodic"])
def test_what_only_a_message_may_have_is_named_in_the_error(client: Version, where: str) -> None:
    delayq = client("after")
    remind = delayq.app.tasks["mail.remind"]
    if where == "periodic":
        delayq.periodic.add("entry", 3600, "mail.remind", (1,))
    else:
        delayq.app.tasks["mail.total"].apply_async(([],), link=remind.s(1), countdown=60)

    report = delayq.rewrite(lambda _: {"priority": 3}, task="mail.remind")

    [failure] = report.failures
    where = "place='periodic'" if where == "periodic" else "part='callback'"
    told = f"this call has {where}, and only that of a message may have priority, expires, headers"
    assert told in failure.problem


# -- pages


def fill_all(delayq: DelayQ, number: int) -> list[str]:
    """Add entries to two queues, dead letters that died at one moment, and periodic entries."""
    for queue in ("celery", "mail"):
        send_numbers(delayq, number, queue)
        dead = [
            (id, AT, stored(AT, "it failed", message(id, "mail.remind"), details()))
            for id in (f"dead {queue} {n}" for n in range(number))
        ]
        delayq.session.stores.of(queue).dead_letters.restore(queue, dead)
        delayq.store.register(queue)
    for n in range(number):
        delayq.periodic.add(f"entry {n}", 3600, "mail.remind", (n,))
    ids: list[str] = []
    delayq.rewrite(lambda call: ids.append(call.id))
    return ids


@pytest.fixture
def _pages_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_ENTRIES", 3)
    monkeypatch.setattr(module, "DEAD_LETTER_BATCH", 3)


@pytest.mark.parametrize("place", [0, 2, 3, 7, 8, 13, 15, 16, 19])
@pytest.mark.usefixtures("_pages_of_three")
def test_an_error_stops_at_its_page_wherever_it_is(client: Version, place: int) -> None:
    """Also in the only page of a queue, and in the last one of all."""
    delayq = client("after")
    ids = fill_all(delayq, 4)
    assert len(ids) == 20
    seen: list[str] = []
    updates: list[int] = []

    wrong = {ids[place]}

    def fail_there(call: WaitingCall) -> None:
        seen.append(call.id)
        if call.id in wrong:
            raise ValueError("as told")

    options: dict[str, Any] = {"stop_on_error": True}
    options["progress"] = lambda report: updates.append(report.looked)
    report = delayq.rewrite(fail_there, **options)

    assert (report.failed, report.is_complete) == (1, False)
    assert report.cursor is not None
    assert place < report.looked <= place + 3
    assert updates[-1] == report.looked
    again = delayq.rewrite(fail_there, resume=report.cursor, **options)
    assert (again.failed, again.cursor, again.is_complete) == (1, report.cursor, False)
    seen.clear()
    wrong.clear()
    rest = delayq.rewrite(fail_there, resume=report.cursor, **options)
    # From the page with the failure on.
    assert (rest.failed, rest.cursor) == (0, None)
    assert seen == ids[len(ids) - rest.looked :]
    assert ids[place] in seen[:3]


def test_a_page_of_large_messages_is_short(
    client: Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "MAX_PAGE_BYTES", 300_000)
    delayq = client("after")
    items = [{"args": ("x" * 100_000,), "countdown": 60 + n, "id": f"{n}"} for n in range(250)]
    delayq.schedule_many(items, task="mail.remind")
    updates: list[int] = []

    report = delayq.rewrite(add_more, progress=lambda report: updates.append(report.looked))

    assert report.outcomes == {Outcome.DONE: 250}
    pages = [after - before for before, after in zip([0, *updates], updates, strict=False)]
    assert max(pages) < 20  # one call reads about 1 MB
    assert delayq.compat().binds == 250
    assert len({each.id for each in delayq.entries()}) == 250


# -- the code of the app


def test_the_modules_of_the_app_are_imported(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks say which arguments they take, and which keys follow from them."""
    delayq = DelayQ.of(lazy_app(make_app, tmp_path, monkeypatch))
    delayq.app.send_task(TASK, ("old",), countdown=60, task_id="a", unique_key="{0}")
    assert not is_imported(delayq.app)

    refused = delayq.rewrite(lambda _: {"args": [1, 2, 3]})
    report = delayq.rewrite(lambda _: {"args": ["new"]})

    assert "does not take the arguments" in refused.failures[0].problem
    assert (report.done, report.failures) == (1, [])
    entry = delayq.get("a")
    assert entry is not None
    assert entry.unique_key == f"{TASK}:new"
    broken = DelayQ.of(make_app(include=["no_such_module_at_all"]))
    with pytest.raises(ConfigError, match="a module cannot be imported"):
        broken.rewrite(lambda _: None)
    with pytest.raises(ConfigError, match="a module cannot be imported"):
        broken.rename("a", "b")
