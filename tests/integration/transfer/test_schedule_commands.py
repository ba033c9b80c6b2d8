"""The commands export and import."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.testing.fixtures import RedisUnderTest
from tests.integration.conftest import query
from tests.support import TIMEOUT
from tests.support.cli import CommandLine
from tests.support.postgres import PASSWORD, PostgresServer
from tests.support.schedules import fill, state

# -- the command line


def test_one_command_line_pipes_into_another(
    shop: list[str], app: Celery, other: EmbeddedRedis, tmp_path: Path, elsewhere: DelayQ
) -> None:
    fill(app, 30)
    there = [*shop[:3], "--broker", other.url_for("delayq+redis"), *shop[3:]]

    exported = subprocess.run(
        [*shop, "export", "-", "--json"], capture_output=True, timeout=TIMEOUT
    )
    assert exported.returncode == 0, exported.stderr
    assert json.loads(exported.stderr.splitlines()[-1])["entries"] == 43
    command = [*there, "import", "-", "--json"]
    imported = subprocess.run(command, input=exported.stdout, capture_output=True, timeout=TIMEOUT)

    assert imported.returncode == 0, imported.stderr
    assert json.loads(imported.stdout) == {
        "dry_run": False,
        "outcomes": {"scheduled": 43},
        "refusals": [],
    }
    assert state(elsewhere) == state(DelayQ.of(app))


def test_the_command_line_takes_filters_and_tells_in_words(
    app: Celery, delayq_redis: RedisUnderTest, file: Path
) -> None:
    fill(app, 30)
    delayq_redis.client.hset("{a}:entries", "rotten\x1b", "garbage")
    delayq_redis.client.zadd("{a}:due", {"rotten\x1b": 10**13})

    def run(*arguments: str, code: int = 0) -> str:
        ran = CommandLine(app)(*arguments)
        assert ran.code == code, ran
        return " ".join((ran.out + ran.err).split())

    told = run("export", str(file), "--queue", "a", code=1)
    assert r"a $'rotten\x1b': unreadable record" in told
    assert "10 entries exported, 1 left out: unreadable." in told
    assert "no queue nowhere" in run("export", str(file), "--queue", "nowhere", code=1)
    told = run("import", str(file), "--dry-run", "--task", "shop.0")
    assert "10 entries, a dry run: 3 left as they are: they are there already" in told
    assert "7 not selected by the filter" in told
    assert "2 for one" not in told
    assert "Invalid value" in run("import", str(file), "--overdue", "maybe", code=2)
    assert "pruned" in run("export", str(file), "--prune", code=2)


@pytest.mark.full
def test_who_reads_may_stop_early(shop: list[str], app: Celery) -> None:
    fill(app)
    command = " ".join([*shop, "export", "-", "|", "head", "-n", "1"])

    found = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        timeout=TIMEOUT,
        env=os.environ,
    )

    assert found.returncode != 0
    assert b"Traceback" not in found.stderr
    assert json.loads(found.stdout)["about"] == 1213


def test_bad_lines_do_not_stop_the_rest(app: Celery, delayq: DelayQ, file: Path) -> None:
    for n in range(5):
        app.send_task("t", countdown=3600 + n, task_id=f"id-{n}")
    delayq.export_to(file)
    lines = file.read_bytes().splitlines()
    lines[2] = b"garbage\x1b[31m"
    lines[4] = json.dumps({**json.loads(lines[4]), "due_ms": "soon"}).encode()
    file.write_bytes(b"\n".join(lines))
    delayq.store.purge("celery")

    ran = CommandLine(app)("import", str(file))

    assert ran.code == 1
    assert "line 3: no JSON: Expecting value" in ran.out
    assert "line 5: due_ms: expected a whole number, got str" in ran.out
    assert "3 scheduled" in ran.out
    assert "2 refused" in ran.out
    assert {task.id for task in delayq.entries()} == {"id-0", "id-2", "id-4"}


def test_no_password_is_shown(
    app: Celery, delayq: DelayQ, postgres: PostgresServer, file: Path
) -> None:
    app.send_task("t", countdown=3600)
    good = postgres.new_database()
    nowhere = good.replace(f":{postgres.port}/", ":1/")

    for url, command in (
        (good, "export"),
        (good, "import"),
        (good.replace("tester:", "stranger:"), "export"),
        (nowhere, "import"),
        (f"{good}_not", "export"),
        (f"{good}?sslmode=never&sslpassword=hunter2", "import"),
    ):
        ran = CommandLine(app)(command, url)
        assert ran.code == (0 if url == good else 1), ran
        assert "hunter2" not in ran.out + ran.err
        port = 1 if url == nowhere else postgres.port
        assert url == good or f"127.0.0.1:{port}" in ran.err
    delayq.export_to(file)
    assert "hunter2" not in file.read_text()
    assert "hunter2" not in str(query(good, "SELECT * FROM delayq_exports"))
    assert "hunter2" in PASSWORD
