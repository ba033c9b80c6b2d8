"""The commands of docs/cluster.md move all tasks of a single Redis to a cluster and back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from celery import Celery

from celery_delayq import DelayQ
from tests.integration.conftest import MakeApp
from tests.support.cli import CommandLine
from tests.support.cluster import QUEUES
from tests.support.dead_letters import fill

pytestmark = pytest.mark.full

PAGE = Path(__file__).parents[3] / "docs" / "cluster.md"
NAMES = [*QUEUES.values()]


def there(app: Celery) -> tuple[dict[str, tuple[str, float]], set[str], set[str]]:
    """Return queue and due time of each entry, the dead letters and the periodic entries."""
    delayq = DelayQ.of(app)
    entries = {each.id: (each.queue, each.due.timestamp()) for each in delayq.entries()}
    periodic = {each.name for each in delayq.periodic.list()}
    return entries, {each.id for each in delayq.dead_letters()}, periodic


def move(old: Celery, new: Celery, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    [commands] = re.findall(r"```bash\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    for line in commands.strip().splitlines():
        match = re.fullmatch(r"\s*celery -A (OLD|NEW) delayq (.*?)(?: > (\S+))?", line)
        assert match is not None, line
        which, words, target = match.groups()
        ran = CommandLine(old if which == "OLD" else new)(*words.split())
        assert ran.code == 0, (line, ran)
        if target:
            Path(target).write_text(ran.out)


def test_all_moves_there_and_back(
    make_app: MakeApp, delayq_cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    single, cluster, other = make_app(), make_app(broker=delayq_cluster), tmp_path / "back"
    other.mkdir()
    delayq = DelayQ.of(single)
    for number, queue in enumerate(NAMES):
        single.send_task(
            "tasks.add", (number, 2), queue=queue, countdown=3600 + number, task_id=f"id-{number}"
        )
        delayq.periodic.add(f"each-{number}", 3600, "tasks.add", (1, 2), queue=queue)
        fill(delayq, 2, queue=queue)
    before = there(single)

    move(single, cluster, tmp_path, monkeypatch)

    assert there(cluster) == before
    move(single, cluster, tmp_path, monkeypatch)  # again
    assert there(cluster) == before
    for each in (*delayq.session.stores,):
        each.client.flushdb()
    move(cluster, single, other, monkeypatch)
    assert there(single) == before
