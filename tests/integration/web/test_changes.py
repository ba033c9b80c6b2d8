"""Each change of the pages does what it says, and says what it did not do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import datetime, timezone
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ, Outcome
from celery_delayq.errors import ConfigError, DelayQError
from celery_delayq.periodic.serialization import describe
from celery_delayq.testing import wait_until
from celery_delayq.web import changes
from celery_delayq.web.actions import ACTIONS, UNCHANGED
from celery_delayq.web.jobs import Job
from celery_delayq.web.query import NotFound, Query, mark_of
from celery_delayq.web.questions import ask, job_of
from celery_delayq.web.site import Site
from tests.integration.conftest import MakeApp
from tests.integration.web.conftest import Scene
from tests.support import TIMEOUT

NOW = datetime(2030, 1, 31, 9, tzinfo=timezone.utc)


@pytest.fixture
def app(make_app: MakeApp, tmp_path: Any) -> Celery:
    archive = f"sqlite:///{tmp_path}/dead.db"
    return make_app(broker_transport_options={"delayq": {"dead_letters_archive": archive}})


@pytest.fixture
def site(scene: Scene) -> Iterator[Site]:
    with closing(Site(scene.delayq.app)) as site:
        yield site


def run(site: Site, **fields: Any) -> Job:
    """Ask for a change, make it, and return its job when it has ended."""
    values = {name: [it] if isinstance(it, str) else it for name, it in fields.items()}
    query = Query("", values)
    question = ask(site, query)
    job = job_of(question, "ops")
    site.jobs.begin(job, changes.prepare(site, query, question))
    wait_until(job.finished.is_set, TIMEOUT)
    return job


def marks(scene: Scene) -> Mapping[str, str]:
    """Return what names the waiting task and the dead letter in a form."""
    waiting, dead = scene.delayq.get(scene.waiting), scene.delayq.dead_letter(scene.dead)
    assert waiting is not None
    assert dead is not None
    return {
        "waiting": mark_of(int(waiting.due.timestamp() * 1000), waiting.id),
        "dead": mark_of(dead.dead_lettered.died_ms, dead.id),
    }


def due_of(delayq: DelayQ, id: str) -> float:
    found = delayq.get(id)
    assert found is not None
    return found.due.timestamp()


def waiting(scene: Scene) -> Any:
    return scene.delayq.get(scene.waiting)


def replayed(scene: Scene) -> Any:
    found: Any = scene.delayq.get(scene.dead)
    return found.args, found.queue


def entry(scene: Scene, name: str) -> Any:
    return scene.delayq.periodic.get(name)


def entry_fields(scene: Scene, name: str) -> Any:
    found = entry(scene, name).definition
    return describe(found.schedule), found.args, found.kwargs, found.options


def limit(scene: Scene, name: str) -> Any:
    return scene.delayq.limits.get(name)


#: Fields of each change, and a look at what it has done.
DONE: Mapping[str, tuple[Mapping[str, str], Callable[[Scene], Any], Any]] = {
    "run_now": ({"mark": "waiting"}, lambda s: waiting(s).state, "ready"),
    "cancel": ({"mark": "waiting"}, waiting, None),
    "move": (
        {"mark": "waiting", "when": "2100-01-01"},
        lambda s: waiting(s).due.year,
        2100,
    ),
    "edit": (
        {"mark": "waiting", "args": '["bob", 18]', "priority": "3"},
        lambda s: (waiting(s).args, waiting(s).priority),
        (["bob", 18], 3),
    ),
    "run_all_now": ({"task": "shop.report"}, lambda s: s.delayq.count(task="shop.report"), 0),
    "cancel_all": ({"queue": "slow"}, lambda s: s.delayq.count(queue="slow"), 0),
    "move_all": (
        {"task": "shop.report", "when": "2100-01-01"},
        lambda s: s.delayq.count(task="shop.report", due_from="2099-01-01"),
        3,
    ),
    "replay": (
        {"mark": "dead", "args": "[7]", "to_queue": "slow", "when": "1h"},
        replayed,
        ([7], "slow"),
    ),
    "purge": ({"mark": "dead"}, lambda s: s.delayq.count_dead(), 0),
    "replay_all": ({"exception": "ValueError", "rate": "10"}, lambda s: s.delayq.count_dead(), 0),
    "purge_all": ({"queue": "celery"}, lambda s: s.delayq.count_dead(), 0),
    "archive_all": ({"queue": "celery"}, lambda s: s.delayq.count_dead(), 0),
    "pause": ({"task": "shop.mail"}, lambda s: [*s.delayq.paused().tasks], ["shop.mail"]),
    "resume": ({"queue": "paused"}, lambda s: [*s.delayq.paused().queues], []),
    "pause_entry": (
        {"entry": "digest"},
        lambda s: entry(s, "digest").status,
        "paused",
    ),
    "resume_entry": ({"entry": "off"}, lambda s: entry(s, "off").status, "on"),
    "run_entry": (
        {"entry": "digest"},
        lambda s: entry(s, "digest").total_run_count,
        1,
    ),
    "edit_entry": (
        {
            **{"entry": "digest", "schedule": "every 1h 30m"},
            **{"args": "[7]", "kwargs": '{"to": "ada"}', "to_queue": "slow"},
        },
        lambda s: entry_fields(s, "digest"),
        ("every 1h 30m", (7,), {"to": "ada"}, {"queue": "slow"}),
    ),
    "set_limit": (
        {"limit": "stripe", "limit_rate": "5/m"},
        lambda s: limit(s, "stripe").definition.rate,
        "5/m",
    ),
    "end_limit": ({"limit": "stripe"}, lambda s: limit(s, "stripe").is_off, True),
    "unset_limit": ({"limit": "stripe"}, lambda s: limit(s, "stripe").override, None),
}


def test_each_change_is_in_the_table() -> None:
    assert DONE.keys() == ACTIONS.keys()


@pytest.mark.parametrize("name", DONE)
def test_a_change_does_what_it_says(prepared: Scene, site: Site, name: str) -> None:
    fields, look, expected = DONE[name]
    named = marks(prepared)

    job = run(site, action=name, **{n: named.get(v, v) for n, v in fields.items()})

    assert (job.error, job.unchanged) == ("", {})
    assert job.done >= 1
    assert look(prepared) == expected


def test_who_comes_second_changes_nothing(scene: Scene, site: Site) -> None:
    named = marks(scene)
    scene.delayq.reschedule(scene.waiting, by=60)
    before = due_of(scene.delayq, scene.waiting)

    for name, fields in (("run_now", {}), ("cancel", {}), ("move", {"by": "1h"})):
        job = run(site, action=name, mark=named["waiting"], **fields)
        assert job.outcomes == {Outcome.CHANGED: 1}, name
    assert due_of(scene.delayq, scene.waiting) == before

    scene.delayq.cancel(scene.waiting)
    scene.delayq.purge(scene.dead)
    gone = [*named.values()]
    assert run(site, action="run_now", mark=gone[0]).outcomes == {Outcome.UNKNOWN: 1}
    for name in ("replay", "purge"):
        assert run(site, action=name, mark=gone[1]).outcomes == {Outcome.UNKNOWN: 1}, name


def all_of(scene: Scene) -> Any:
    delayq = scene.delayq
    return (
        *([*delayq.entries()], delayq.count_dead(), delayq.paused()),
        *(delayq.periodic.list(), delayq.limits.list()),
    )


#: Forms that are refused before anything is changed.
WRONG = (
    {"action": "drop"},
    {"action": "cancel"},
    {"action": "cancel", "mark": "x"},
    {"action": "move", "mark": "waiting"},
    {"action": "move", "mark": "waiting", "by": "soon"},
    {"action": "move", "mark": "waiting", "when": "1h", "by": "1h"},
    {"action": "edit", "mark": "waiting", "args": ""},
    {"action": "edit", "mark": "waiting", "args": "7"},
    {"action": "edit", "mark": "waiting", "priority": "high"},
    {"action": "replay", "mark": "dead", "args": "{"},
    {"action": "replay", "mark": "dead", "args": "{}"},
    {"action": "replay_all", "rate": "fast"},
    {"action": "pause"},
    {"action": "pause_entry"},
    {"action": "edit_entry"},
    {"action": "edit_entry", "entry": "nobody"},
    {"action": "edit_entry", "entry": "digest", "schedule": "soon"},
    {"action": "edit_entry", "entry": "digest", "schedule": "every -5m"},
    {"action": "edit_entry", "entry": "digest", "args": "{}"},
    {"action": "edit_entry", "entry": "digest", "to_queue": "\udcff"},
    {"action": "replay", "mark": "dead", "args": f'["{"x" * 1_000_000}"]'},
    {"action": "set_limit", "limit": "stripe"},
    {"action": "set_limit", "limit": "stripe", "concurrency": "many"},
    {"action": "cancel_all", "due_from": "never"},
    {"action": "cancel_all", "arg": "order"},
    {"action": "purge_all", "argument": "order"},
)


@pytest.mark.parametrize("fields", WRONG, ids=lambda fields: str(fields)[:80])
def test_a_wrong_form_changes_nothing(scene: Scene, site: Site, fields: Mapping[str, str]) -> None:
    named = marks(scene)
    before = all_of(scene)

    with pytest.raises((DelayQError, NotFound)):
        run(site, **{name: named.get(value, value) for name, value in fields.items()})

    assert all_of(scene) == before


def test_arguments_that_a_task_does_not_take_change_no_entry(scene: Scene, site: Site) -> None:
    @scene.delayq.app.task(name="shop.report", shared=False)
    def report(number: int) -> None:
        """Stand for the task."""

    before = all_of(scene)

    with pytest.raises(ConfigError, match=r"shop.report: args=\(1, 2\), .* too many"):
        run(site, action="edit_entry", entry="digest", args="[1, 2]")

    assert all_of(scene) == before


def test_a_form_of_an_entry_that_is_sent_as_it_is_changes_nothing(scene: Scene, site: Site) -> None:
    scene.delayq.periodic.add(
        "all",
        90.5,
        "shop.mail",
        ["\u20ac", "\ud7ff\u2028", {"at": NOW}],
        {"n": [1.5]},
        queue="slow",
    )
    before = all_of(scene)
    for each in ("all", "digest"):
        question = ask(site, Query("", {"action": ["edit_entry"], "entry": [each]}))
        job = run(site, action="edit_entry", entry=each, **question.values)

        assert (job.error, job.done) == ("", 1)
    assert all_of(scene) == before


def test_an_entry_that_would_never_tick_stays_as_it_is(scene: Scene, site: Site) -> None:
    before = all_of(scene)

    job = run(site, action="edit_entry", entry="digest", schedule="at 2020-01-31T09:00")

    assert (job.done, "is never due" in job.error) == (0, True)
    assert all_of(scene) == before


def test_an_entry_that_may_not_overlap_says_so(scene: Scene, site: Site) -> None:
    scene.delayq.periodic.add("alone", 3600, "shop.report", overlap="skip")

    jobs = [run(site, action="run_entry", entry="alone") for _ in range(2)]

    assert [(job.done, "may not overlap" in job.error) for job in jobs] == [(1, False), (0, True)]


@pytest.mark.parametrize(("name", "kind"), [("edit", "waiting"), ("replay", "dead")])
def test_a_form_has_the_arguments_of_its_task(
    scene: Scene, site: Site, name: str, kind: str
) -> None:
    delayq = scene.delayq
    found: Any = delayq.get(scene.waiting) if kind == "waiting" else delayq.dead_letter(scene.dead)
    assert found is not None
    its = found.arguments()["args"]

    question = ask(site, Query("", {"action": [name], "mark": [marks(scene)[kind]]}))

    assert its
    assert json.loads(question.values["args"]) == its


def test_a_change_of_many_can_be_stopped(app: Celery, scene: Scene, site: Site) -> None:
    rows = [{"args": (n,), "countdown": 3600} for n in range(2000)]
    scene.delayq.schedule_many(rows, task="shop.bulk")
    query = Query("", {"action": ["cancel_all"], "task": ["shop.bulk"]})
    question = ask(site, query)
    assert question.title == "Cancel: 2,000 tasks with task shop.bulk"
    job = job_of(question, "ops")
    job.stopping.set()

    site.jobs.begin(job, changes.prepare(site, query, question))

    wait_until(job.finished.is_set, TIMEOUT)
    assert job.error == "It was stopped."
    assert scene.delayq.count(task="shop.bulk") > 1000


def test_the_outcome_of_a_move_into_the_past_names_the_button(site: Site, scene: Scene) -> None:
    job = run(site, action="move", by="-9999d", mark=marks(scene)["waiting"])

    assert (job.error, job.outcomes) == ("", {Outcome.PAST: 1})
    assert "Run now" in UNCHANGED[Outcome.PAST]
