"""Tables and files of dead letters: columns, rows that are wrong, places that are refused."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import pytest

from celery_delayq import DelayQ
from celery_delayq.errors import TransferError
from tests.integration.conftest import query
from tests.support.dead_letters import AT, dead_letters, details, fill, message, stored

# -- what people see


def test_the_table_tells_people_what_died(delayq: DelayQ, database: str) -> None:
    told = details()
    data = stored(AT, "failed: ValueError", message("id-1", root_id="r", group="g"), told)
    delayq.store.dead_letters.restore("mail", [("id-1", AT, data)])
    made = delayq.archive_dead(database).made

    columns = "queue, id, task, task_id, reason, exception, retries, worker, root_id, group_id"
    [row] = query(database, f"SELECT {columns}, died_ms, data FROM dead_letters")
    assert row[:4] == ("mail", "id-1", "shop.mail", "id-1")
    assert row[4:8] == ("failed: ValueError", "ValueError", 3, "celery@one")
    assert row[8:11] == ("r", "g", AT)
    assert bytes(row[11]) == data
    [[traceback]] = query(database, "SELECT traceback FROM dead_letters")
    assert traceback == json.loads(told)["traceback"]
    [[died, archived]] = query(database, "SELECT died, archived_at FROM dead_letters")
    if database.startswith("postgresql"):
        assert died == datetime.fromtimestamp(AT / 1000, timezone.utc)
        assert archived == datetime.fromisoformat(made)
    else:
        assert died == "2023-11-14 22:13:20.000000"


def test_a_row_that_was_spoiled_is_refused_by_its_id(
    delayq: DelayQ, elsewhere: DelayQ, database: str
) -> None:
    ids = fill(delayq, 3)
    delayq.archive_dead(database)
    query(database, f"UPDATE dead_letters SET queue = 'other' WHERE id = '{ids[1]}'")

    report = elsewhere.import_dead(database)

    assert report.outcomes == {"restored": 2, "refused": 1}
    [refusal] = report.refusals
    assert refusal.line == 2
    assert refusal.reason == f"id {ids[1]!r}: the row was changed manually"


def test_a_database_file_is_for_its_owner(delayq: DelayQ, tmp_path: Path) -> None:
    fill(delayq, 3)
    delayq.archive_dead(f"sqlite:///{tmp_path}/dead.db")
    assert (tmp_path / "dead.db").stat().st_mode & 0o777 == 0o600


def test_a_table_of_others_is_left_alone(delayq: DelayQ, database: str) -> None:
    fill(delayq, 1)
    query(database, "CREATE TABLE dead_letters (id INTEGER, queue TEXT)")

    for call in (delayq.archive_dead, delayq.export_dead, delayq.import_dead):
        with pytest.raises(TransferError, match="is of another program, it has no column died_ms"):
            call(database)
    assert len(dead_letters(delayq)) == 1
