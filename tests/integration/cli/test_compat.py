"""``delayq compat``: what it prints, and how it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.admin.compat import PLACES, Place
from celery_delayq.errors import InvalidFilter
from tests.integration.conftest import MakeApp
from tests.integration.periodic.versions import deploy
from tests.support.cli import CommandLine, times_in
from tests.support.dead_letters import message, stored


@pytest.fixture
def _gone(app: Celery, delayq: DelayQ) -> None:
    """One message that binds, and seven of a task that is gone: six scheduled, one dead."""
    app.send_task("shop.mail", (1,), countdown=60)
    for number in range(6):
        app.send_task("shop.gone", (number,), task_id=f"gone {number}", countdown=60 + number)
    dead = stored(1000, "it failed", message("dead", "shop.gone"))
    delayq.store.dead_letters.restore("celery", [("dead", 1000, dead)])


def test_all_bind(cli: CommandLine, app: Celery) -> None:
    app.send_task("shop.mail", (1,), countdown=60)

    ran = cli("compat")

    assert (ran.code, ran.out) == (
        0,
        "1 message looked at: 1 scheduled, 0 ready, 0 dead, 0 periodic\n"
        "1 bind, 0 would fail, 0 cannot be told\n",
    )


@pytest.mark.usefixtures("_gone")
def test_what_would_fail_is_shown_by_task_and_problem(cli: CommandLine) -> None:
    ran = cli("compat")

    assert ran.code == 1
    words = " ".join(ran.out.split())
    assert "shop.gone 7 the task is not registered 6 scheduled, 1 dead due " in words
    assert "'gone 0'" in ran.out
    assert "…" in ran.out
    assert words.endswith("1 bind, 7 would fail, 0 cannot be told")
    (row,) = cli("compat", "--json").json["problems"]
    assert (row["count"], row["level"], len(row["ids"])) == (7, "fails", 5)
    assert len(times_in(ran.out)) == 2
    assert cli("compat", "--queue", "celery").code == 1
    both = cli("compat", "--queue", "celery", "--queue", "celery", "--json").json
    assert both["looked"] == {"scheduled": 7, "ready": 0, "dead": 1, "periodic": 0}


@pytest.mark.usefixtures("_gone")
def test_an_export_is_checked_in_place_of_the_broker(
    cli: CommandLine, delayq: DelayQ, tmp_path: Path, make_app: MakeApp
) -> None:
    path = str(tmp_path / "schedule.jsonl")
    delayq.export_to(path)
    away = CommandLine(make_app(broker="delayq+redis://127.0.0.1:1/0"))

    dead = str(tmp_path / "dead.jsonl")
    delayq.export_dead(dead)

    ran = away("compat", "--file", path, "--json")

    told = away("compat", "--file", dead, "--json")
    assert (told.code, told.json["looked"]["dead"], told.json["fails"]) == (1, 1, 1)
    assert (ran.code, ran.json["looked"]["scheduled"], ran.json["fails"]) == (1, 7, 7)
    lines = Path(path).read_text().splitlines(keepends=True)
    Path(path).write_text("".join(lines[:2]))  # the first one binds
    cut_off = cli("compat", "--file", path)
    assert (cut_off.code, "it was cut off" in cut_off.out) == (2, True)


def test_what_cannot_be_told_is_counted(cli: CommandLine, app: Celery) -> None:
    app.conf.accept_content = ["json", "pickle"]
    app.send_task("shop.mail", (1,), serializer="pickle", countdown=60)

    ran = cli("compat")

    assert (ran.code, "0 would fail, 1 cannot be told" in ran.out) == (0, True)
    assert "the content was not decoded (cannot be told)" in " ".join(ran.out.split())
    assert cli("compat", "--strict").code == 1
    assert cli("compat", "--strict", "--unpickle").code == 0


@pytest.mark.parametrize("given", [(), ("--json",)])
def test_it_exits_with_2_if_it_cannot_look(given: Any, make_app: MakeApp, tmp_path: Path) -> None:
    away = CommandLine(make_app(broker="delayq+redis://127.0.0.1:1/0"))
    missing = str(tmp_path / "nothing.jsonl")

    assert away("compat", *given).code == 2
    assert away("compat", "--file", missing, *given).code == 2
    assert away("compat", "--file", "mysql://x/y", *given).code == 2


def test_it_exits_with_2_if_a_module_cannot_be_imported(cli: CommandLine, app: Celery) -> None:
    app.conf.imports = ["shop.no_such_module"]

    ran = cli("compat")

    assert (ran.code, ran.out) == (2, "")
    assert "a module cannot be imported: ModuleNotFoundError" in ran.err


def test_entries_that_the_code_replaces_do_not_fail(
    cli: CommandLine, app: Celery, make_app: MakeApp
) -> None:
    before = make_app()
    entry = {"task": "shop.gone", "schedule": 3600.0}
    before.conf.beat_schedule = {"each": entry}
    deploy(before)
    app.conf.beat_schedule = {"each": {**entry, "task": "shop.mail", "args": (1,)}}

    ran = cli("compat")

    assert ran.code == 0
    assert "1 bind, 0 would fail" in ran.out
    told = "1 periodic entry would fail, but the first worker of this code replaces it."
    assert told in " ".join(ran.out.split())
    assert cli("compat", "--json").json["replaced"] == 1


@pytest.mark.usefixtures("_gone")
@pytest.mark.parametrize("place", PLACES)
def test_only_some_places_are_looked_at(
    cli: CommandLine, delayq: DelayQ, place: Place, tmp_path: Path
) -> None:
    delayq.app.send_task("shop.gone")
    delayq.periodic.add("each", 3600.0, "shop.gone")
    whole = {"scheduled": 7, "ready": 1, "dead": 1, "periodic": 1}
    fails = {**whole, "scheduled": 6}

    ran = cli("compat", "--place", place, "--json")
    others = [each for each in PLACES if each != place]
    rest = delayq.compat(place=others)

    assert ran.json["looked"] == dict.fromkeys(PLACES, 0) | {place: whole[place]}
    assert (ran.code, ran.json["fails"]) == (1, fails[place])
    assert rest.looked == {each: whole[each] for each in others}
    assert rest.fails == sum(fails[each] for each in others)
    if place in ("scheduled", "dead"):
        path = str(tmp_path / "dead.jsonl")
        delayq.export_dead(path)
        assert delayq.compat(path, place=place).number == (place == "dead")


def test_a_place_that_is_not_there_is_refused(delayq: DelayQ) -> None:
    unknown: Any = "held"
    with pytest.raises(InvalidFilter, match="place='held': expected one of scheduled, ready, dead"):
        delayq.compat(place=unknown)


def test_an_unknown_queue_is_refused(cli: CommandLine) -> None:
    for first in ("mial", "celery"):
        ran = cli("compat", "--queue", first, "--queue", "mial")

        assert ran.code == 2
        assert "no queue mial" in ran.err
