"""Dead letters of RabbitMQ to files and databases, and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_delayq import DelayQ
from celery_delayq.model.dead_letter import DeadFilter
from tests.integration.conftest import NewRabbitMQ
from tests.support.cli import CommandLine

ALL = {f"{n}" for n in range(5)}


@pytest.fixture
def delayq(new_rabbitmq: NewRabbitMQ) -> DelayQ:
    """An app with five dead letters in two queues."""
    scene = new_rabbitmq()
    for n in range(5):
        scene.app.send_task("shop.work", task_id=f"{n}", queue="odd" if n % 2 else "even")
    for queue, count in (("even", 3), ("odd", 2)):
        for _ in range(count):
            message = scene.channel.basic_get(queue)
            scene.channel.message_to_python(message).reject()
    return DelayQ.of(scene.app)


def _ids(delayq: DelayQ) -> set[str]:
    return {dead.id for dead in delayq.dead_letters()}


@pytest.mark.parametrize("place", ["dead.jsonl", "sqlite:///{}/dead.db"])
def test_an_export_is_restored_once(delayq: DelayQ, tmp_path: Path, place: str) -> None:
    target = place.format(tmp_path) if "{" in place else str(tmp_path / place)
    assert _ids(delayq) == ALL
    assert delayq.export_dead(target).dead_letters == 5
    assert delayq.purge_all(DeadFilter(queue="odd")).done == 2

    first, again = (delayq.import_dead(target).outcomes for _ in range(2))

    assert (dict(first), dict(again)) == ({"restored": 2, "duplicate": 3}, {"duplicate": 5})
    assert _ids(delayq) == ALL


def test_an_archive_has_what_left_the_broker(delayq: DelayQ, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/dead.db"

    ran = CommandLine(delayq.app)("dead", "archive", url, "--queue", "odd")

    assert ran.code == 0, ran.err
    assert _ids(delayq) == {"0", "2", "4"}
    assert delayq.archive_dead(url, older_than=3600).moved == 0
    assert delayq.import_dead(url).outcomes == {"restored": 2}
    assert _ids(delayq) == ALL


@pytest.mark.parametrize(
    ("args", "shown", "left"),
    [
        ("list --queue odd --json", '"id": "3"', ALL),
        ("show 2", "rejected", ALL),
        ("replay 1", "eplayed", ALL - {"1"}),
        ("replay 1 --countdown 60", "eplayed", ALL - {"1"}),
        ("replay --task shop.work --rate 100 --yes", "5 dead letters replayed", set()),
        ("purge --queue even --yes", "3 dead letters purged", {"1", "3"}),
        ("purge --everything --dry-run", "5", ALL),
    ],
)
def test_commands(delayq: DelayQ, args: str, shown: str, left: set[str]) -> None:
    ran = CommandLine(delayq.app)("dead", *args.split())

    assert ran.code == 0, ran.err
    assert shown in ran.out
    assert _ids(delayq) == left
