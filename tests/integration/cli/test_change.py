"""``cancel``, ``reschedule`` and ``run-now`` on the command line."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.model.scheduled import Bulk, Outcome
from celery_delayq.schedule.items import Item
from celery_delayq.testing import ManagedProcess, wait_until
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT
from tests.support.cli import INTERRUPTIBLE, CommandLine
from tests.support.dead_letters import fill

FAR = datetime(2100, 1, 31, 9, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)


@pytest.fixture
def filled(app: Celery) -> None:
    """Four tasks at nine, ten, eleven and twelve, two of each of two tasks and queues."""
    for n, id in enumerate(("nine", "ten", "eleven", "twelve")):
        name, queue = ("shop.mail", "celery") if n < 2 else ("shop.bill", "bills")
        app.send_task(name, eta=FAR + n * HOUR, task_id=id, queue=queue)


def due(delayq: DelayQ, id: str) -> datetime | None:
    found = delayq.get(id)
    return None if found is None else found.due


def everything(delayq: DelayQ) -> list[str]:
    return [entry.id for entry in delayq.entries()]


# -- ids


@pytest.mark.usefixtures("filled")
def test_ids_are_cancelled_and_each_is_reported(cli: CommandLine, delayq: DelayQ) -> None:
    done = cli("cancel", "nine", "eleven")
    mixed = cli("cancel", "nine", "ten", "--json")

    assert (done.code, done.out) == (0, "cancelled  nine\ncancelled  eleven\n")
    assert mixed.code == 1
    assert mixed.json == {
        "outcomes": [{"id": "nine", "outcome": "unknown"}, {"id": "ten", "outcome": "done"}]
    }
    assert everything(delayq) == ["twelve"]


@pytest.mark.usefixtures("filled")
def test_only_the_queue_that_is_named_is_looked_at(cli: CommandLine, delayq: DelayQ) -> None:
    assert cli("cancel", "nine", "--queue", "bills").code == 1
    assert cli("cancel", "nine", "--queue", "celery").code == 0
    assert everything(delayq) == ["ten", "eleven", "twelve"]


@pytest.mark.usefixtures("filled")
def test_an_id_is_changed_only_if_it_is_due_as_get_tells(cli: CommandLine, delayq: DelayQ) -> None:
    exact = cli("get", "nine", "--json").json["entries"][0]["due"]

    stale = cli("cancel", "nine", "--if-eta", "2100-01-31T09:00:00.001Z")
    moved = cli("reschedule", "nine", "--by", "1h", "--if-eta", exact)
    again = cli("reschedule", "nine", "--by", "1h", "--if-eta", exact)

    assert (stale.code, moved.code, again.code) == (1, 0, 1)
    assert "changed: it is due at another time" in stale.out
    assert due(delayq, "nine") == FAR + HOUR
    assert cli("run-now", "nine", "--if-eta", exact).code == 1
    assert cli("cancel", "nine", "--if-eta", "2100-01-31T10:00").code == 0


@pytest.mark.usefixtures("filled")
def test_ids_are_moved_to_a_time_by_an_amount_and_from_now(
    cli: CommandLine, delayq: DelayQ
) -> None:
    assert cli("reschedule", "nine", "--eta", "2100-02-01T09:00:00+02:00").code == 0
    assert due(delayq, "nine") == datetime(2100, 2, 1, 7, tzinfo=timezone.utc)
    assert cli("reschedule", "nine", "--eta", "2100-02-01").code == 0
    assert due(delayq, "nine") == datetime(2100, 2, 1, tzinfo=timezone.utc)
    assert cli("reschedule", "ten", "eleven", "--by", "1h30m").code == 0
    assert due(delayq, "ten") == FAR + HOUR + timedelta(minutes=90)
    assert cli("reschedule", "ten", "--by", "-90").code == 0
    assert cli("reschedule", "ten", "--by=-1h").out == "moved 1h earlier  ten\n"
    assert due(delayq, "ten") == FAR + timedelta(minutes=90) - timedelta(seconds=90)
    before = delayq.store.now_ms()
    assert cli("reschedule", "ten", "--in", "2d").code == 0
    moved = due(delayq, "ten")
    assert moved is not None
    assert 0 <= moved.timestamp() * 1000 - before - 2 * 86_400_000 < TIMEOUT * 1000


@pytest.mark.usefixtures("filled")
def test_nothing_is_moved_into_the_past(cli: CommandLine, delayq: DelayQ) -> None:
    told = cli("reschedule", "nine", "ten", "--by", "-50000d", "--json")
    refused = cli("reschedule", "nine", "--eta", "2001-01-01")

    assert (told.code, refused.code) == (1, 2)
    assert [each["outcome"] for each in told.json["outcomes"]] == ["past", "past"]
    assert "has passed; run-now runs at once" in refused.err
    assert due(delayq, "nine") == FAR


@pytest.mark.usefixtures("filled")
def test_what_is_run_now_is_ready_and_then_no_more_moved(cli: CommandLine, delayq: DelayQ) -> None:
    assert cli("run-now", "nine").out == "made ready  nine\n"

    assert "ready" in cli("get", "nine").out
    moved = cli("reschedule", "nine", "--in", "5m")
    assert (moved.code, moved.out.split()[3:4]) == (1, ["ready:"])
    assert cli("cancel", "nine").code == 0
    assert cli("stats", "--json").json["oldest_age"] == 0


def test_an_unknown_id_and_one_that_a_worker_has_are_no_success(
    cli: CommandLine, napper: str
) -> None:
    for command in (["cancel"], ["run-now"], ["reschedule", "--in", "5m"]):
        ran = cli(*command, napper, "thirteen")
        assert ran.code == 1
        running, unknown = ran.out.splitlines()
        assert re.fullmatch(r"not \w+( \w+)?  napper  running: a worker has it", running)
        assert re.fullmatch(r"not \w+( \w+)?  thirteen  unknown: .+", unknown)


# -- by filter


@pytest.mark.usefixtures("filled")
def test_a_dry_run_tells_what_is_meant_and_changes_nothing(
    cli: CommandLine, delayq: DelayQ
) -> None:
    shown = cli("cancel", "--due-from", "2100-01-31T10:00Z", "--dry-run")
    told = cli("cancel", "--due-from", "2100-01-31T10:00Z", "--dry-run", "--json")
    one = cli("run-now", "--task", "shop.bill", "--dry-run")
    by_priority = cli("reschedule", "--priority", "0", "--by", "-10m", "--dry-run")

    assert shown.code == told.code == 0
    assert "Cancel 3 entries of 2 tasks in 2 queues: a dry run, nothing was changed." in shown.out
    assert re.search(r"^shop\.bill +bills +2$", shown.out, re.MULTILINE)
    assert told.json == {
        "dry_run": True,
        "total": 3,
        "outcomes": {"done": 3},
        "unknown": 0,
        "meant": [
            {"queue": "bills", "task": "shop.bill", "entries": 2},
            {"queue": "celery", "task": "shop.mail", "entries": 1},
        ],
    }
    assert one.out.startswith("Run now 2 entries of shop.bill in queue bills: a dry run")
    assert "Move 4 entries of 2 tasks in 2 queues 10m earlier: a dry run" in " ".join(
        by_priority.out.split()
    )
    assert everything(delayq) == ["nine", "ten", "eleven", "twelve"]


@pytest.mark.usefixtures("filled")
def test_all_that_a_filter_means_is_cancelled(cli: CommandLine, delayq: DelayQ) -> None:
    done = cli("cancel", "--task", "shop.bill", "--due-to", "2100-01-31T11:00", "--yes")

    assert (done.code, done.out) == (0, "1 entry cancelled.\n")
    assert everything(delayq) == ["nine", "ten", "twelve"]


@pytest.mark.usefixtures("filled")
def test_all_that_a_filter_means_is_moved(cli: CommandLine, delayq: DelayQ) -> None:
    later = cli("reschedule", "--queue", "bills", "--by", "1d", "--yes")
    told = cli("reschedule", "--queue", "bills", "--eta", "2100-03-01T00:00Z", "--yes", "--json")
    past = cli("reschedule", "--queue", "bills", "--by", "-50000d", "--yes")
    dry = cli("reschedule", "--queue", "bills", "--eta", "2100-03-02T00:00+09:00", "--dry-run")

    assert " in queue bills to 2100-03-01T15:00:00+00:00: a dry run" in " ".join(dry.out.split())
    assert (later.code, later.out) == (0, "2 entries moved 1d later.\n")
    assert (told.code, told.json["outcomes"]) == (0, {"done": 2})
    assert {due(delayq, id) for id in ("eleven", "twelve")} == {
        datetime(2100, 3, 1, tzinfo=timezone.utc)
    }
    assert past.code == 1
    assert "2 not moved, past: it would have been due in the past" in past.out
    assert due(delayq, "nine") == FAR


@pytest.mark.usefixtures("filled")
def test_all_that_a_filter_means_is_run(cli: CommandLine, delayq: DelayQ) -> None:
    assert cli("run-now", "--task", "shop.mail", "--yes").out == "2 entries made ready.\n"

    assert delayq.stats().ready == 2
    assert everything(delayq) == ["eleven", "twelve"]


@pytest.mark.usefixtures("filled")
def test_everything_is_changed_only_if_it_is_named(cli: CommandLine, delayq: DelayQ) -> None:
    changes = ("cancel", "run-now", "reschedule --by 1h", "dead replay", "dead purge")
    nobody = "nobody can be asked here whether to do it: say --yes"
    for line, said in (
        *((line, "or --everything for all") for line in changes),
        *((f"{line} --yes", "or --everything for all") for line in changes),
        *((f"{line} --everything", nobody) for line in changes),
        *((f"{line} --queue bills", nobody) for line in changes),
    ):
        for more in ([], ["--json"]):
            refused = cli(*line.split(), *more)
            assert (refused.code, refused.out) == (2, ""), line
            assert all(each in refused.err for each in (said, "--dry-run")), line
    assert cli("cancel", "--dry-run", "--json").json["total"] == 4
    assert len(everything(delayq)) == 4

    done = cli("cancel", "--everything", "--yes")
    assert re.search(r"^shop\.mail +celery +2$", done.out, re.MULTILINE)
    assert done.out.endswith("\n4 entries cancelled.\n")
    assert everything(delayq) == []


@pytest.mark.usefixtures("filled")
def test_a_filter_that_means_nothing_is_reported_and_no_error(cli: CommandLine) -> None:
    shown = cli("cancel", "--queue", "blils", "--yes")
    told = cli("cancel", "--task", "none", "--yes", "--json")

    assert shown.code == told.code == 0
    assert "0 entries" in shown.out
    assert "There is no queue blils" in shown.out
    assert told.json == {"dry_run": False, "total": 0, "outcomes": {}, "unknown": 0}


# -- what happens meanwhile


@pytest.mark.parametrize("kind", ["entries", "dead letters"])
def test_what_was_done_before_it_was_interrupted_is_reported(
    delayq: DelayQ, shop: list[str], kind: str
) -> None:
    """Interrupt a command that works on 10,000."""
    count: Callable[[], int]
    if kind == "entries":
        delayq.schedule_many((Item(countdown=3600 + n) for n in range(10_000)), task="t")
        count, command, most = delayq.count, ["run-now", "--queue", "celery"], 100
    else:
        fill(delayq, 10_000)
        count, command, most = delayq.count_dead, ["dead", "purge", "--everything"], 10_000

    with ManagedProcess([*INTERRUPTIBLE, *shop, *command, "--yes"]) as process:
        wait_until(lambda: count() < 10_000, TIMEOUT, "it has begun", interval=0.001)
        os.kill(process.pid, signal.SIGINT)
        code, log = process.wait(timeout=TIMEOUT), process.log

    left = count()
    assert code == 1
    assert 0 < left < 10_000
    done = "made ready" if kind == "entries" else "purged"
    told = re.search(rf"Interrupted: at least ([\d,]+) {kind} were {done} before\.", log)
    assert told is not None, log
    assert "Traceback" not in log
    assert 0 <= 10_000 - left - int(told[1].replace(",", "")) <= most


def test_a_result_backend_that_is_not_there_is_reported_in_one_line(
    app: Celery, make_app: MakeApp
) -> None:
    app.send_task("t", task_id="one", countdown=3600)
    other = make_app()

    def fail(*_: object, **__: object) -> None:
        raise OSError("nobody is there\n\x1b[31mreally")

    other.backend.mark_as_revoked = fail
    ran = CommandLine(other)("cancel", "one")

    assert (ran.code, ran.out) == (0, "cancelled  one\n")
    [told] = ran.err.splitlines()
    assert "task 'one'" in told
    assert told.endswith(r"nobody is there\n\x1b[31mreally")


@pytest.mark.parametrize(
    ("command", "method", "done", "reasons"),
    [
        ("run-now", "run_all_now", "2 entries made ready.", "running unknown"),
        ("dead replay", "replay_all", "2 dead letters replayed.", "changed conflict unknown"),
    ],
)
def test_what_others_change_meanwhile_is_reported(
    app: Celery,
    cli: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    method: str,
    done: str,
    reasons: str,
) -> None:
    app.send_task("t", countdown=3600)
    fill(DelayQ.of(app), 1)
    became = Counter({Outcome.DONE: 2} | {Outcome(reason): 1_200 for reason in reasons.split()})
    bulk = Bulk(False, became.total(), became)
    monkeypatch.setattr(DelayQ.of(app), method, lambda *_, **__: bulk)

    shown = cli(*command.split(), "--queue", "celery", "--yes")
    told = cli(*command.split(), "--queue", "celery", "--yes", "--json")

    assert shown.code == told.code == 1
    first, *others = shown.out.splitlines()
    assert first == done
    verb = done.partition("s ")[2].rstrip(".")
    # Long lines are wrapped.
    assert [line.split(":")[0] for line in others if line.startswith("1,200")] == [
        f"1,200 not {verb}, {reason}" for reason in reasons.split()
    ]
    assert told.json["outcomes"] == {str(outcome): n for outcome, n in became.items()}
