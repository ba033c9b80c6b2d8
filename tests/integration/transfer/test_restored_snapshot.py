"""The steps of docs/backup.md restore a snapshot into a server with an append-only file."""

from __future__ import annotations

import re
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.testing import wait_until
from tests.integration.conftest import MakeApp
from tests.support import TIMEOUT
from tests.support.skips import left_out

pytestmark = pytest.mark.full

PAGE = Path(__file__).parents[3] / "docs" / "backup.md"
SAVE = "redis-cli --rdb /backup/dump.rdb"


@pytest.fixture(autouse=True)
def redis_cli() -> None:
    """Need the program of the steps."""
    if shutil.which("redis-cli") is None:
        raise left_out("the steps need redis-cli")


def blocks() -> list[str]:
    """Return the blocks of the page with the commands for the servers."""
    return re.findall(r"```bash\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def run(commands: str, server: EmbeddedRedis, backup: Path) -> None:
    """Run commands of the page on a server."""
    text = (
        commands.replace("redis-cli ", f"redis-cli -p {server.port} ")
        .replace("/var/lib/redis", str(server.data_dir))
        .replace("/backup", str(backup))
    )
    subprocess.run(["bash", "-euc", text], check=True, timeout=TIMEOUT)


def persistence(server: EmbeddedRedis) -> dict[str, Any]:
    with Redis(port=server.port) as client:
        return dict(client.info("persistence"))


def ids(delayq: DelayQ) -> set[str]:
    return {entry.id for entry in delayq.entries()}


def test_a_snapshot_is_restored_and_outlives_the_next_start(
    make_app: MakeApp, tmp_path: Path
) -> None:
    assert SAVE in PAGE.read_text("utf-8")
    put_back, switch_on = blocks()
    backup, folder = tmp_path / "backup", tmp_path / "redis"
    backup.mkdir()
    with EmbeddedRedis(data_dir=folder) as server:
        port = server.port
        app = make_app(broker=server.url_for("delayq+redis"))
        delayq = DelayQ.of(app)
        app.send_task("tasks.add", (1, 2), countdown=3600, task_id="before")
        run(SAVE, server, backup)
        app.send_task("tasks.add", (1, 2), countdown=3600, task_id="after")
        delayq.close()
    # With the append-only file that is there, Redis would ignore the snapshot.
    run(put_back, server, backup)
    with EmbeddedRedis(data_dir=folder, port=port, appendonly=False) as server:
        wait_until(lambda: ids(delayq) == {"before"}, TIMEOUT, "the restored entry")
        run(switch_on, server, backup)
        delayq.close()
        server.kill()

    with EmbeddedRedis(data_dir=folder, port=port):
        assert ids(delayq) == {"before"}
        delayq.close()


def test_the_step_waits_for_a_rewrite_that_is_only_scheduled_or_has_failed(tmp_path: Path) -> None:
    """Redis schedules the rewrite while it writes a snapshot; it repeats one that has failed."""
    _, switch_on = blocks()
    with EmbeddedRedis(data_dir=tmp_path, appendonly=False) as server, ExitStack() as stack:
        client = stack.enter_context(Redis(port=server.port))
        client.mset({f"key{number}": "x" for number in range(20)})
        client.config_set("rdb-key-save-delay", 100_000)
        client.bgsave()
        assert persistence(server)["rdb_bgsave_in_progress"] == 1

        run(switch_on, server, tmp_path)

        found = persistence(server)
        assert (found["aof_rewrite_scheduled"], found["aof_rewrite_in_progress"]) == (0, 0)
        assert found["aof_last_bgrewrite_status"] == "ok"
        server.kill()

    with EmbeddedRedis(data_dir=tmp_path) as server, Redis(port=server.port) as client:
        assert client.dbsize() == 20
