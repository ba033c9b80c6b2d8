"""``history`` and ``timeline``: finished runs, and what happened to one task."""

from __future__ import annotations

from celery import Celery

from celery_delayq import DelayQ
from tests.integration.cli.conftest import CONTROLS, HOSTILE
from tests.support.cli import CommandLine, times_in
from tests.support.runs import finished, numbered


def test_the_last_runs_and_those_after_an_offset(delayq: DelayQ, cli: CommandLine) -> None:
    delayq.store.history.add("me", 1, 10_000, numbered(1500))

    shown = cli("history", "--limit", "3")
    told = cli("history", "--limit", "1200", "--json")

    assert shown.code == told.code == 0
    assert "3 runs; the last one has offset " in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    ids = [each["id"] for each in told.json["runs"]]
    assert ids == [f"id {number}" for number in range(300, 1500)]
    offset = told.json["runs"][-3]["offset"]
    after = cli("history", "--after", offset, "--json").json["runs"]
    assert [each["id"] for each in after] == ["id 1498", "id 1499"]
    assert after == told.json["runs"][-2:]


def test_a_run_has_all_its_values(delayq: DelayQ, cli: CommandLine) -> None:
    run = finished("one", 4_500, started=2_000, due=1_000, state="FAILURE", retries=2, reason="No")
    delayq.store.history.add("me", 1, 100, [run])

    [told] = cli("history", "--json").json["runs"]
    wide = cli("history", columns=200).out

    del told["offset"]
    assert told == {
        **{"id": "one", "task": "tasks.add", "queue": "celery", "worker": "celery@one"},
        **{"due": "1970-01-01T00:00:01+00:00", "promoted": None},
        **{"started": "1970-01-01T00:00:02+00:00", "ended": "1970-01-01T00:00:04.500000+00:00"},
        **{"state": "FAILURE", "retries": 2, "deliveries": 1, "reason": "No"},
    }
    assert [each in wide for each in ("FAILURE", "2s", "tasks.add", "celery@one", "one")] == [
        True
    ] * 5


def test_without_a_history_there_are_no_runs(cli: CommandLine) -> None:
    shown, told = cli("history"), cli("history", "--json")

    assert (shown.code, shown.out) == (0, "No finished runs.\n")
    assert told.json == {"runs": []}
    assert cli("history", "--after", "soon").code == 2


def test_attempts_and_the_next_one(app: Celery, delayq: DelayQ, cli: CommandLine) -> None:
    attempts = [
        finished("it", 4_000, due=1_000, promoted=2_000, started=3_000, state="RETRY", reason="No"),
        finished("other", 4_000),
        finished("it", 8_000, started=7_000, state="RETRY", retries=1, reason="Again no"),
    ]
    delayq.store.history.add("me", 1, 100, attempts)
    app.send_task("shop.mail", task_id="it", countdown=3600, retries=2)

    shown, told = cli("timeline", "it"), cli("timeline", "it", "--json")

    assert shown.code == told.code == 0
    events = [each["event"] for each in told.json["events"]]
    assert events == [
        "due: attempt 1",
        "ready in queue celery",
        "started: attempt 1, on celery@one",
        "ended: attempt 1, RETRY, No",
        "started: attempt 2, on celery@one",
        "ended: attempt 2, RETRY, Again no",
        "due",
    ]
    times = [each["at"] for each in told.json["events"]]
    assert times == sorted(times)
    assert len(times_in(shown.out)) == len(set(times))
    assert [line.partition("  ")[2] for line in shown.out.splitlines()[:7]] == events
    assert "It is retry 2 of its task." in shown.out
    assert told.json["why"]["state"] == "scheduled"


def test_a_finished_task_and_an_unknown_one(delayq: DelayQ, cli: CommandLine) -> None:
    delayq.store.history.add("me", 1, 100, [finished("it", 2_000, started=1_000)])

    ended, unknown = cli("timeline", "it"), cli("timeline", "never")

    assert ended.code == 0
    assert ended.out.splitlines()[-1].endswith("ended: attempt 1, SUCCESS")
    assert unknown.code == 1
    assert unknown.out.startswith("Nothing is known of it: ")


def test_names_cannot_steer_a_terminal(delayq: DelayQ) -> None:
    cli = CommandLine(delayq.app, shows_foreign=True)
    run = finished(HOSTILE, 2_000, started=1_000, task=HOSTILE, worker=HOSTILE, queue=HOSTILE)
    delayq.store.history.add("me", 1, 100, [run])

    for command in (["history"], ["timeline", HOSTILE]):
        for columns in (80, 200):
            ran = cli(*command, columns=columns)
            assert ran.code == 0
            assert not CONTROLS.search(ran.out + ran.err)
