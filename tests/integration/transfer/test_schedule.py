"""The schedule to files and databases and back, between real servers."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.errors import TransferError
from celery_delayq.model.scheduled import Filter
from celery_delayq.schedule.items import Item
from celery_delayq.testing import ManagedProcess
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.transfer.results import Exported, Imported
from tests.integration.conftest import MakeApp, query, ready, stored
from tests.support.keyspace import snapshot
from tests.support.postgres import PASSWORD, PostgresServer
from tests.support.proxy import Proxy

HOSTILE = (
    "with space",
    "new\nline",
    "{brace}:%00",
    "ünï☃ '\"\\",
    "nul\0inside",
    "x" * 10_000,
    "-",
)

FAR = datetime(2100, 1, 1, tzinfo=timezone.utc)


@pytest.fixture(params=["schedule.jsonl", "schedule.jsonl.gz", "sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where to export to."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/schedule.db"
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        return server.new_database()
    return str(tmp_path / request.param)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "schedule.jsonl"


@pytest.fixture
def other(delayq_redis_factory: Callable[..., EmbeddedRedis]) -> EmbeddedRedis:
    """A second server."""
    return delayq_redis_factory()


@pytest.fixture
def elsewhere(make_app: MakeApp, other: EmbeddedRedis) -> DelayQ:
    """The object of an app on the second server."""
    return DelayQ.of(make_app(broker=other.url_for("delayq+redis")))


@pytest.fixture
def shop(tmp_path: Path, delayq_broker_url: str) -> list[str]:
    """The beginning of a command line on an app module."""
    return command_line(tmp_path / "one", delayq_broker_url)


def command_line(folder: Path, url: str) -> list[str]:
    folder.mkdir()
    (folder / "shop.py").write_text(
        "from celery import Celery\n"
        "from celery_delayq import DelayQ\n"
        f"app = Celery('shop', broker={url!r})\nDelayQ(app)\n"
    )
    return [sys.executable, "-m", "celery", "--workdir", str(folder), "-A", "shop", "delayq"]


def state(server: EmbeddedRedis | RedisUnderTest) -> dict[str, Any]:
    """All that is kept but for what says that somebody may look now."""
    client = server.client() if isinstance(server, EmbeddedRedis) else server.client
    found = snapshot(client)
    return {
        key: value
        for key, value in found.items()
        if not key.startswith("_kombu.") and not key.endswith(":wake")
    }


def fill(app: Celery, count: int = 1200) -> None:
    """Schedule on three queues, and something of each kind that there is."""
    DelayQ.of(app).schedule_many(
        Item((n, []), eta=FAR, task=f"shop.{n % 4}", queue="abc"[n % 3], priority=n % 10)
        for n in range(count)
    )
    for n, id in enumerate(HOSTILE):
        app.send_task("shop.ü b", task_id=id, countdown=90_000 + n)
    for n in range(3):
        app.send_task("shop.duplicate", (n,), task_id="duplicate", countdown=3600 + n)
    app.send_task("shop.unique", (1,), countdown=3600, unique_key="key", on_conflict="replace")
    app.send_task("shop.late", countdown=3600, skip_after=60)
    app.send_task("shop.big", ({"n": 2**70, "empty": []},), eta=FAR)


# -- there and back


def test_a_round_trip_between_two_servers_loses_nothing(
    app: Celery,
    delayq: DelayQ,
    delayq_redis: RedisUnderTest,
    elsewhere: DelayQ,
    other: EmbeddedRedis,
    place: str,
) -> None:
    fill(app)
    before = state(delayq_redis)

    exported = delayq.export_to(place)
    imported = elsewhere.import_from(place)

    assert state(delayq_redis) == before
    assert state(other) == before
    assert (exported.entries, exported.left_out, exported.total) == (1213, 0, 1213)
    assert imported.outcomes == {"scheduled": 1213}
    assert (imported.total, imported.missing) == (1213, 0)

    again = delayq.export_to(place)
    assert again.entries == 1213
    dry = elsewhere.import_from(place, dry_run=True)
    repeated = elsewhere.import_from(place)
    back = delayq.import_from(place)

    for report in (dry, repeated, back):
        assert report.outcomes == {"duplicate": 1213}
    assert state(delayq_redis) == state(other) == before


def test_what_is_ready_or_held_is_not_added_again(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest, file: Path
) -> None:
    for n in range(9):
        app.send_task("t", countdown=3600, task_id=f"id-{n}")
    delayq.export_to(file)
    for n in range(6):
        delayq.run_now(f"id-{n}")
    delayq.store.leases.reserve("celery", "me", 30.0, "1", 3)
    before = state(delayq_redis)

    assert delayq.import_from(file, dry_run=True).outcomes == {"duplicate": 9}
    assert delayq.import_from(file).outcomes == {"duplicate": 9}
    assert state(delayq_redis) == before


def test_what_has_run_since_is_added_again(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest, file: Path
) -> None:
    app.send_task("t", countdown=3600)
    before = state(delayq_redis)
    delayq.export_to(file)
    delayq.store.clear("celery")

    assert delayq.import_from(file, dry_run=True).outcomes == {"scheduled": 1}
    assert delayq.import_from(file).outcomes == {"scheduled": 1}
    assert state(delayq_redis) == before


def test_duplicate_ids_stay_two_though_the_first_has_run(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest, elsewhere: DelayQ, file: Path
) -> None:
    for n in range(3):
        app.send_task(
            "t", (n,), task_id="duplicate", countdown=3600 - n
        )  # the last one comes first
    sent = stored(delayq_redis)

    delayq.export_to(file)
    assert elsewhere.import_from(file).outcomes == {"scheduled": 3}
    assert elsewhere.import_from(file).outcomes == {"duplicate": 3}

    def told(which: DelayQ) -> list[Any]:
        """What of them is not a matter of names: which of them has the plain id."""
        return [(task.due, task.message) for task in which.entries()]

    assert told(elsewhere) == told(delayq)
    assert len(elsewhere.find("duplicate")) == len(sent) == 3


# -- overdue, paused


def make_due(redis: RedisUnderTest, key: str, *ids: str) -> None:
    """Let the moment of entries have passed a second ago, as if nothing had dispatched."""
    seconds, _ = redis.client.time()
    for id in ids:
        redis.client.zadd(f"{{{key}}}:due", {id: (seconds - 1) * 1000}, xx=True)


def test_what_is_overdue_is_ready_at_once_in_its_step_or_passed_over(
    app: Celery,
    delayq: DelayQ,
    delayq_redis: RedisUnderTest,
    elsewhere: DelayQ,
    other: EmbeddedRedis,
    place: str,
) -> None:
    for n in range(4):
        app.send_task("t", task_id=f"id-{n}", countdown=3600 + n, priority=3 * (n % 2))
    make_due(delayq_redis, "celery", "id-0", "id-1")
    delayq.export_to(place)

    dry = elsewhere.import_from(place, dry_run=True)
    skipping = elsewhere.import_from(place, overdue="skip", dry_run=True)
    assert dry.outcomes == {"ready": 2, "scheduled": 2}
    assert skipping.outcomes == {"overdue": 2, "scheduled": 2}
    assert state(other) == {}
    assert elsewhere.import_from(place, overdue="skip").outcomes == skipping.outcomes
    assert elsewhere.import_from(place).outcomes == {"ready": 2, "duplicate": 2}
    assert elsewhere.import_from(place).outcomes == {"duplicate": 4}

    there = RedisUnderTest(other, other.client())
    assert [message["headers"]["id"] for message in ready(there)] == ["id-0"]
    assert [message["headers"]["id"] for message in ready(there, "celery\x06\x163")] == ["id-1"]


def test_paused_entries_have_their_true_due(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest, elsewhere: DelayQ, place: str
) -> None:
    """Parked is what a dispatcher met while its task was paused."""
    app.send_task("t", task_id="paused_due", countdown=0.05)
    app.send_task("t", task_id="later", countdown=3600)
    delayq.pause(task="t")
    store = delayq.store
    while delayq.get("paused_due").state != "paused":  # type: ignore[union-attr]
        store.promote("celery", store.layout, 10)
    dues = {task.id: task.due for task in delayq.entries()}

    delayq.export_to(place)
    report = elsewhere.import_from(place)

    assert report.outcomes == {"ready": 1, "scheduled": 1}
    assert {
        task.id: task.due for task in (*elsewhere.find("paused_due"), *elsewhere.entries())
    } == dues
    assert delayq.import_from(place).outcomes == {"duplicate": 2}


# -- which ones


def test_both_ways_only_what_a_filter_means(
    app: Celery, delayq: DelayQ, elsewhere: DelayQ, place: str
) -> None:
    fill(app, 120)
    which = Filter(queue="a", due_from=FAR, due_to=FAR, priority=6)
    ids = {task.id for task in delayq.entries(which)}

    exported = delayq.export_to(place, Filter(task="shop.0"))
    assert exported.entries == exported.total == 30
    assert delayq.export_to(place, which).entries == len(ids) == 12
    delayq.export_to(place)

    imported = elsewhere.import_from(place, which)
    assert imported.outcomes["scheduled"] == 12
    assert {task.id for task in elsewhere.entries()} == ids
    assert elsewhere.import_from(place, Filter(task="shop.duplicate")).outcomes["scheduled"] == 3


# -- unique keys, full queues


def test_an_import_never_replaces_what_has_the_key(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest, file: Path
) -> None:
    def send(number: int, **options: Any) -> None:
        options = {"unique_key": "key", "on_conflict": "replace", **options}
        app.send_task("t", (number,), countdown=3600 + number, task_id=f"id-{number}", **options)

    send(1)
    delayq.export_to(file)
    send(2)
    before = state(delayq_redis)

    assert delayq.import_from(file).outcomes == {"kept": 1}
    assert state(delayq_redis) == before
    delayq.cancel("id-2")
    assert delayq.import_from(file).outcomes == {"scheduled": 1}
    send(3)
    assert [task.id for task in delayq.entries()] == ["id-3"]


def test_a_retry_runs_beside_what_has_its_key(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest, elsewhere: DelayQ, file: Path
) -> None:
    unique = {"unique_key": "key", "on_conflict": "keep", "countdown": 3600}
    app.send_task("t", task_id="first", **unique)
    first = stored(delayq_redis)[0]
    delayq.run_now("first")
    delayq.store.clear("celery")
    delayq_redis.client.delete("celery", "{celery}:waiting", "{celery}:unique")
    app.send_task("t", task_id="second", **unique)
    own = {**first["properties"]["delayq"], "countdown": 3600, "message_id": "retry"}
    first["headers"].update(retries=1, eta=FAR.isoformat())
    first["properties"].update(delayq=own, delivery_tag="retry")
    with app.connection_for_write() as connection:
        connection.default_channel._put("celery", first)
    before = {task.id for task in delayq.entries()}
    assert before == {"first", "second"}

    delayq.export_to(file)

    assert elsewhere.import_from(file).outcomes == {"scheduled": 2}
    assert {task.id for task in elsewhere.entries()} == before
    assert elsewhere.import_from(file).outcomes == {"duplicate": 2}


def test_what_finds_its_queue_full_is_counted(
    app: Celery, delayq: DelayQ, make_app: MakeApp, other: EmbeddedRedis, file: Path
) -> None:
    for n in range(120):
        app.send_task("t", countdown=3600 + n)
    delayq.export_to(file)
    options = {"delayq": {"max_scheduled": 70}}
    small = make_app(broker=other.url_for("delayq+redis"), broker_transport_options=options)

    report = DelayQ.of(small).import_from(file)

    assert report.outcomes == {"scheduled": 70, "full": 50}
    assert report.missing == 50
    assert DelayQ.of(small).count() == 70


def test_a_full_redis_is_told_and_the_import_may_be_repeated(
    app: Celery, delayq: DelayQ, elsewhere: DelayQ, other: EmbeddedRedis, file: Path
) -> None:
    for n in range(100):
        app.send_task("t", countdown=3600 + n)
    delayq.export_to(file)
    client = other.client()
    client.config_set("maxmemory", 1)

    with pytest.raises(TransferError, match="no memory left"):
        elsewhere.import_from(file)

    client.config_set("maxmemory", 0)
    assert elsewhere.import_from(file).outcomes == {"scheduled": 100}


# -- what cannot be read


def test_unreadable_records_are_told_and_not_in_the_way(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest, elsewhere: DelayQ, place: str
) -> None:
    for n in range(6):
        app.send_task("t", task_id=f"id-{n}", countdown=3600 + n)
    delayq_redis.client.hset("{celery}:entries", "id-1", "garbage")
    delayq_redis.client.hset("{celery}:entries", "id-2", "1 0 n t\n{not json")
    delayq_redis.client.hdel("{celery}:entries", "id-3")

    report = delayq.export_to(place)

    assert (report.entries, report.left_out) == (3, 3)
    assert [each.id for each in report.unreadable] == ["id-1", "id-2", "id-3"]
    assert "no JSON" in report.unreadable[1].reason
    assert elsewhere.import_from(place).outcomes == {"scheduled": 3}
    assert [task.id for task in elsewhere.entries()] == ["id-0", "id-4", "id-5"]


def test_a_database_takes_no_nul_in_a_name_and_a_file_does(
    app: Celery, delayq: DelayQ, elsewhere: DelayQ, place: str
) -> None:
    app.send_task("nul\0task", countdown=3600)
    app.send_task("t", countdown=3600)

    report = delayq.export_to(place)

    in_file = "://" not in place
    assert (report.entries, report.left_out) == ((2, 0) if in_file else (1, 1))
    assert elsewhere.import_from(place).outcomes["scheduled"] == report.entries


def test_bad_lines_do_not_stop_the_rest(
    shop: list[str], app: Celery, delayq: DelayQ, file: Path
) -> None:
    for n in range(5):
        app.send_task("t", countdown=3600 + n, task_id=f"id-{n}")
    delayq.export_to(file)
    lines = file.read_bytes().splitlines()
    lines[2] = b"garbage\x1b[31m"
    lines[4] = json.dumps({**json.loads(lines[4]), "due_ms": "soon"}).encode()
    file.write_bytes(b"\n".join(lines))
    delayq.store.clear("celery")

    with ManagedProcess([*shop, "import", str(file)]) as process:
        assert process.wait() == 1
        assert "line 3: no JSON: Expecting value" in process.log
        assert "line 5: due_ms: expected a whole number, got str" in process.log
        assert "3 scheduled" in process.log
        assert "2 refused" in process.log
    assert {task.id for task in delayq.entries()} == {"id-0", "id-2", "id-4"}


# -- databases


def test_the_table_tells_people_what_is_scheduled(
    app: Celery, delayq: DelayQ, database: str
) -> None:
    app.send_task("shop.remind", task_id="id-1", eta=FAR, priority=4)
    made = delayq.export_to(database).made

    [row] = query(database, "SELECT queue, id, task, due_ms, step, message FROM delayq_entries")
    assert row[:5] == ("celery", "id-1", "shop.remind", int(FAR.timestamp() * 1000), 3)
    assert json.loads(row[5])["headers"]["id"] == "id-1"
    [[due, exported_at]] = query(database, "SELECT due, exported_at FROM delayq_entries")
    if database.startswith("postgresql"):
        assert (due, exported_at) == (FAR, datetime.fromisoformat(made))
    else:
        assert due == "2100-01-01 00:00:00.000000"
    assert query(database, "SELECT version, entries, left_out FROM delayq_exports") == [(1, 1, 0)]


def test_rows_follow_what_was_moved_and_go_only_when_pruned(
    app: Celery, delayq: DelayQ, elsewhere: DelayQ, database: str
) -> None:
    for n in range(4):
        app.send_task("t", task_id=f"id-{n}", queue="ab"[n % 2], eta=FAR)
    delayq.export_to(database)
    assert elsewhere.app is not None
    elsewhere.app.send_task("t", task_id="of-another-server", queue="a", eta=FAR)
    elsewhere.export_to(database)
    delayq.reschedule("id-0", by=60)
    delayq.cancel("id-2")
    delayq.cancel("id-3")

    def rows() -> dict[str, int]:
        return dict(query(database, "SELECT id, due_ms FROM delayq_entries"))

    far = int(FAR.timestamp() * 1000)
    delayq.export_to(database)
    every = {"id-0": far + 60_000, "of-another-server": far}
    every |= {f"id-{n}": far for n in range(1, 4)}
    assert rows() == every

    assert delayq.export_to(database, Filter(queue="a"), prune=True).pruned == 1
    del every["id-2"]
    assert rows() == every
    assert delayq.export_to(database, prune=True).pruned == 1
    del every["id-3"]
    assert rows() == every


def test_a_row_that_was_spoiled_is_refused_by_its_id(
    app: Celery, delayq: DelayQ, elsewhere: DelayQ, database: str
) -> None:
    for n in range(3):
        app.send_task("t", task_id=f"id-{n}", countdown=3600 + n)
    delayq.export_to(database)
    query(database, "UPDATE delayq_entries SET message = '{}' WHERE id = 'id-1'")

    report = elsewhere.import_from(database)

    assert report.outcomes == {"scheduled": 2, "refused": 1}
    [refusal] = report.refusals
    assert refusal.line == 2
    assert refusal.reason.startswith("id 'id-1': ")


def test_the_last_moments_that_can_be_stored_come_back(
    app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest, elsewhere: DelayQ, place: str
) -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=timezone.utc)
    app.send_task("t", task_id="last", eta=last)
    app.send_task("t", task_id="later", eta=last)
    delayq_redis.client.zadd("{celery}:due", {"later": 253_402_300_800_000})

    delayq.export_to(place)
    assert elsewhere.import_from(place).outcomes == {"scheduled": 2}

    page = elsewhere.store.control.page("celery", Filter().where(), 10)
    assert {each.id: each.due_ms for each in page.entries} == {
        "last": 253_402_300_799_999,
        "later": 253_402_300_800_000,
    }


def test_a_database_of_a_later_version_is_left_alone(
    app: Celery, delayq: DelayQ, database: str
) -> None:
    app.send_task("t", countdown=3600)
    delayq.export_to(database)
    query(database, "UPDATE delayq_exports SET version = 2")

    with pytest.raises(TransferError, match="version 2 of the format"):
        delayq.export_to(database)
    with pytest.raises(TransferError, match="version 2 of the format"):
        delayq.import_from(database)


def test_a_source_that_is_not_there_is_told_and_not_made(
    delayq: DelayQ, postgres: PostgresServer, tmp_path: Path
) -> None:
    for source, reason in (
        (str(tmp_path / "none.jsonl"), "No such file"),
        (f"sqlite:///{tmp_path}/none.db", "no such file"),
        (postgres.new_database(), "no table delayq_entries"),
    ):
        with pytest.raises(TransferError, match=reason):
            delayq.import_from(source)
    assert [*tmp_path.iterdir()] == []


def test_no_password_is_shown(
    shop: list[str], app: Celery, delayq: DelayQ, postgres: PostgresServer, file: Path
) -> None:
    app.send_task("t", countdown=3600)
    good = postgres.new_database()
    stranger = good.replace("tester:", "stranger:")
    nowhere = good.replace(f":{postgres.port}/", ":1/")
    unknown = f"{good}_not"
    odd = f"{good}?sslmode=never&sslpassword=hunter2"

    for url, command in (
        (good, "export"),
        (good, "import"),
        (stranger, "export"),
        (nowhere, "import"),
        (unknown, "export"),
        (odd, "import"),
    ):
        with ManagedProcess([*shop, command, url]) as process:
            assert process.wait() == (0 if url == good else 1), process.log
            assert "hunter2" not in process.log
            assert "Traceback" not in process.log
            port = 1 if url == nowhere else postgres.port
            assert url == good or f"127.0.0.1:{port}" in process.log
    delayq.export_to(file)
    assert "hunter2" not in file.read_text()
    assert "hunter2" not in str(query(good, "SELECT * FROM delayq_exports"))
    assert "hunter2" in PASSWORD


def test_the_password_of_redis_is_not_in_an_export(
    make_app: MakeApp, delayq_redis_factory: Callable[..., EmbeddedRedis], file: Path
) -> None:
    server = delayq_redis_factory(password="hunter2")
    app = make_app(broker=server.url_for("delayq+redis"))
    app.send_task("t", countdown=3600)

    DelayQ.of(app).export_to(file)

    header = json.loads(file.read_bytes().splitlines()[0])
    assert header["server"] == f"127.0.0.1:{server.port}/0"
    assert b"hunter2" not in file.read_bytes()


# -- what is interrupted


SCRIPT = """
import sys, time
from celery import Celery
from celery_delayq import DelayQ

def stop(report):
    print("half way", report.looked, flush=True)
    time.sleep(600)

broker, run, place = sys.argv[1:]
app = Celery("killed", broker=broker)
getattr(DelayQ(app), run)(place, progress=stop)
"""


def kill_half_way(broker: str, run: str, place: str) -> None:
    """Kill a process that exports or imports when it has done a part of it."""
    with ManagedProcess([sys.executable, "-c", SCRIPT, broker, run, place]) as process:
        process.wait_log("^half way [1-9]")
        process.kill()


def test_an_export_that_was_killed_leaves_all_as_it_was(
    app: Celery, delayq: DelayQ, delayq_broker_url: str, elsewhere: DelayQ, place: str
) -> None:
    app.send_task("t", task_id="before", countdown=3600)
    delayq.export_to(place)
    fill(app)

    kill_half_way(delayq_broker_url, "export_to", place)

    assert elsewhere.import_from(place).outcomes == {"scheduled": 1}
    assert delayq.export_to(place).entries == 1214
    assert elsewhere.import_from(place).outcomes == {"scheduled": 1213, "duplicate": 1}


def test_an_import_that_was_killed_is_completed_by_the_next(
    app: Celery,
    delayq: DelayQ,
    delayq_redis: RedisUnderTest,
    elsewhere: DelayQ,
    other: EmbeddedRedis,
    place: str,
) -> None:
    fill(app)
    delayq.export_to(place)

    kill_half_way(other.url_for("delayq+redis"), "import_from", place)
    assert elsewhere.count() == 499

    assert elsewhere.import_from(place).outcomes == {"scheduled": 714, "duplicate": 499}
    assert state(other) == state(delayq_redis)


@pytest.mark.parametrize("place", ["schedule.jsonl", "postgresql"], indirect=True)
def test_redis_goes_away_in_the_middle(
    app: Celery,
    delayq: DelayQ,
    delayq_redis: RedisUnderTest,
    make_app: MakeApp,
    other: EmbeddedRedis,
    place: str,
) -> None:
    fill(app)
    with Proxy(delayq_redis.port) as proxy:
        through = DelayQ.of(make_app(broker=f"delayq+redis://127.0.0.1:{proxy.port}/0"))

        def refuse(report: Exported | Imported) -> None:
            if report.looked:
                proxy.refuse()

        with pytest.raises(TransferError, match=r"stopped after \d+ entries, nothing is kept"):
            through.export_to(place, progress=refuse)
    if "://" not in place:
        assert not Path(place).exists()
    delayq.export_to(place)

    with Proxy(other.port) as proxy:
        through = DelayQ.of(make_app(broker=f"delayq+redis://127.0.0.1:{proxy.port}/0"))
        with pytest.raises(TransferError, match="stopped after 499 entries, run it again"):
            through.import_from(place, progress=refuse)
        proxy.accept()
        report = through.import_from(place)
    assert report.outcomes == {"scheduled": 714, "duplicate": 499}
    assert state(other) == state(delayq_redis)


def test_a_lost_connection_is_made_again_and_nothing_is_added_twice(
    app: Celery,
    delayq: DelayQ,
    delayq_redis: RedisUnderTest,
    make_app: MakeApp,
    other: EmbeddedRedis,
    file: Path,
) -> None:
    fill(app)
    delayq.export_to(file)
    with Proxy(other.port) as proxy:
        through = DelayQ.of(make_app(broker=f"delayq+redis://127.0.0.1:{proxy.port}/0"))

        report = through.import_from(file, progress=lambda _: proxy.cut_all())

    assert report.looked == 1213
    assert report.missing == 0
    assert state(other) == state(delayq_redis)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # psycopg cannot close its cursor then
def test_the_database_goes_away_in_the_middle(
    app: Celery, delayq: DelayQ, elsewhere: DelayQ, postgres: PostgresServer
) -> None:
    fill(app)
    url = postgres.new_database()

    def end(report: Exported | Imported) -> None:
        with postgres.connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
                [url.rpartition("/")[2]],
            )

    with pytest.raises(TransferError, match=r"stopped after [1-9].* nothing is kept") as caught:
        delayq.export_to(url, progress=end)
    assert "hunter2" not in str(caught.value)
    assert query(url, "SELECT count(*) FROM delayq_entries") == [(0,)]
    delayq.export_to(url)

    with pytest.raises(TransferError, match="stopped after 499 entries, run it again"):
        elsewhere.import_from(url, progress=end)
    gc.collect()
    assert elsewhere.import_from(url).outcomes == {"scheduled": 714, "duplicate": 499}


# -- the command line


def test_one_command_line_pipes_into_another(
    shop: list[str],
    app: Celery,
    delayq_redis: RedisUnderTest,
    other: EmbeddedRedis,
    tmp_path: Path,
) -> None:
    fill(app, 30)
    there = command_line(tmp_path / "two", other.url_for("delayq+redis"))

    exported = subprocess.run([*shop, "export", "-", "--json"], capture_output=True, timeout=60)
    assert exported.returncode == 0, exported.stderr
    assert json.loads(exported.stderr.splitlines()[-1])["entries"] == 43
    command = [*there, "import", "-", "--json"]
    imported = subprocess.run(command, input=exported.stdout, capture_output=True, timeout=60)

    assert imported.returncode == 0, imported.stderr
    assert json.loads(imported.stdout) == {
        "dry_run": False,
        "outcomes": {"scheduled": 43},
        "refusals": [],
    }
    assert state(other) == state(delayq_redis)


def test_the_command_line_takes_filters_and_tells_in_words(
    shop: list[str], app: Celery, delayq: DelayQ, delayq_redis: RedisUnderTest, file: Path
) -> None:
    fill(app, 30)
    delayq_redis.client.hset("{a}:entries", "rotten\x1b", "garbage")
    delayq_redis.client.zadd("{a}:due", {"rotten\x1b": 10**13})

    def run(*arguments: str, code: int = 0) -> str:
        with ManagedProcess([*shop, *arguments]) as process:
            assert process.wait() == code, process.log
            return " ".join(process.log.split())

    told = run("export", str(file), "--queue", "a", code=1)
    assert r"a $'rotten\x1b': unreadable record" in told
    assert "10 entries exported, 1 left out: unreadable." in told
    assert "no queue nowhere" in run("export", str(file), "--queue", "nowhere", code=1)
    told = run("import", str(file), "--dry-run", "--task", "shop.0")
    assert "10 entries, a dry run: 3 left as they are: they are there already" in told
    assert "7 not meant by the filter" in told
    assert "2 for one" not in told
    assert "Invalid value" in run("import", str(file), "--overdue", "maybe", code=2)
    assert "pruned" in run("export", str(file), "--prune", code=1)


def test_who_reads_may_stop_early(shop: list[str], app: Celery) -> None:
    fill(app)
    command = " ".join([*shop, "export", "-", "|", "head", "-n", "1"])

    found = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, timeout=60, env=os.environ
    )

    assert found.returncode != 0
    assert b"Traceback" not in found.stderr
    assert json.loads(found.stdout)["about"] == 1213
