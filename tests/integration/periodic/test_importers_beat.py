"""Entries of a real celery beat go on where they were."""

from __future__ import annotations

import dbm
import fcntl
import os
import pickle
import shelve
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab

from celery_delayq import DelayQ
from celery_delayq.errors import ConfigError
from celery_delayq.periodic.code_version import Deployment
from celery_delayq.periodic.importers import beat
from celery_delayq.periodic.wall_clock import ms_of_datetime
from tests.integration.periodic.conftest import MakeShop
from tests.integration.periodic.importing import (
    TASK,
    ago,
    entries,
    problems,
    results,
    run_beat,
    state,
)
from tests.support.periodic import HOUR, UTC


def told_by(file: Path) -> dict[str, Any]:
    with shelve.open(str(file), flag="r") as kept:
        return dict(kept["entries"])


def write(file: Path, kept: Any) -> None:
    """Write the entries in beat's file as somebody else could."""
    with dbm.open(str(file), "w") as found:
        found[b"entries"] = pickle.dumps(kept)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])  # each hour is there once
def test_entries_of_beat_go_on_in_their_phase(zone: str, make_shop: MakeShop, file: Path) -> None:
    app = make_shop("shop", zone, ran=TASK, waits={**TASK, "schedule": crontab(minute=0)}, new=TASK)
    run_beat(app, file, ran=ago(hours=5), waits=ago(days=1))
    told = told_by(file)

    assert results(app, beat.entries(app, file)) == dict.fromkeys(("ran", "waits", "new"), "added")

    new, ran, waits = entries(app)
    codes = {entry.name: entry.definition for entry in (new, ran, waits)}
    assert {each.source for each in codes.values()} == {"code shop"}
    at = {name: entry.last_run_at.astimezone(UTC) for name, entry in told.items()}
    made = ms_of_datetime(at["new"])
    assert new == state(codes["new"], at["new"], made + HOUR, None)
    ms = ms_of_datetime(at["ran"])
    assert ran == state(codes["ran"], at["ran"], ms + HOUR, at["ran"], 1)
    ms = ms_of_datetime(at["waits"])
    assert waits == state(codes["waits"], at["waits"], ms // HOUR * HOUR + HOUR, at["waits"], 1)


def test_a_second_time_all_are_kept(app: Celery, file: Path) -> None:
    app.conf.beat_schedule = {"a": TASK, "b": TASK}
    run_beat(app, file, a=ago(hours=5))
    assert results(app, beat.entries(app, file), dry_run=True) == {"a": "added", "b": "added"}
    assert entries(app) == []
    results(app, beat.entries(app, file))
    before = entries(app)

    assert results(app, beat.entries(app, file)) == {"a": "kept", "b": "kept"}
    assert results(app, beat.entries(app, file), replace=True) == {"a": "kept", "b": "kept"}
    assert entries(app) == before
    Deployment(app).keep(DelayQ.of(app).session.stores)
    assert entries(app) == before, "workers take them for those in their code"


def test_beats_file_is_not_changed(app: Celery, file: Path) -> None:
    app.conf.beat_schedule = {"a": TASK}
    run_beat(app, file)

    def look() -> dict[str, Any]:
        return {
            each.name: (each.read_bytes(), each.stat().st_mtime_ns)
            for each in file.parent.iterdir()
        }

    before = look()
    list(beat.entries(app, file))
    assert look() == before

    with pytest.raises(ConfigError, match="there is no such file; expected that of celery beat"):
        beat.entries(app, file.with_name("missing"))
    assert look() == before


class Evil:
    """What a pickle may be made to call."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.made),)


def test_what_pickles_name_is_not_called(app: Celery, file: Path) -> None:
    app.conf.beat_schedule = {"a": TASK, "b": TASK, "c": TASK, "d": TASK}
    run_beat(app, file)
    made = file.parent / "made"

    kept = told_by(file)
    kept["a"] = Evil(made)
    kept["b"].args = [Evil(made)]  # of what is to be done the code tells
    kept["c"].last_run_at = Evil(made)
    write(file, kept)

    assert results(app, beat.entries(app, file)) == {
        "a": "refused", "b": "added", "c": "refused", "d": "added",
    }  # fmt: skip
    told = problems(beat.entries(app, file))
    assert "it is a posix.mkdir, of which nothing was read" in told["a"]
    assert "last_run_at" in told["c"]
    write(file, Evil(made))
    with pytest.raises(ConfigError, match="no file of celery beat, or it is damaged"):
        beat.entries(app, file)
    assert not made.exists()


def test_a_damaged_file_is_an_error(app: Celery, file: Path) -> None:
    app.conf.beat_schedule = {"a": TASK}
    run_beat(app, file)
    for each in file.parent.iterdir():
        each.write_bytes(each.read_bytes()[: each.stat().st_size // 2])

    with pytest.raises(ConfigError, match="or it is damaged"):
        beat.entries(app, file)


def test_a_file_that_beat_has_open_is_an_error(app: Celery, file: Path) -> None:
    app.conf.beat_schedule = {"a": TASK}
    run_beat(app, file)
    with next(file.parent.iterdir()).open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as GNU's dbm does

        with pytest.raises(ConfigError, match="a celery beat has it open or writes it; stop it"):
            beat.entries(app, file)
