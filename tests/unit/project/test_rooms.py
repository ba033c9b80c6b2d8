"""Limits that keep the code easy to find one's way in; import-linter checks the imports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from celery_delayq.transport import channel as redis_channel
from celery_delayq.transport.amqp import channel as amqp_channel
from celery_delayq.transport.cluster.channel import ClusterChannel
from celery_delayq.transport.cluster.shard import ShardChannel

PROJECT = Path(__file__).parents[3]
PACKAGE = PROJECT / "celery_delayq"


def files(folder: Path) -> list[Path]:
    return [
        path
        for path in folder.rglob("*")
        if path.suffix in (".py", ".lua") and "__pycache__" not in path.parts
    ]


@pytest.mark.parametrize("folder", ["celery_delayq", "example_project", "tests"])
def test_no_file_has_more_than_700_lines(folder: str) -> None:
    lengths = {
        str(path.relative_to(PROJECT)): len(path.read_text("utf-8").splitlines())
        for path in files(PROJECT / folder)
    }

    assert {path: lines for path, lines in lengths.items() if lines > 700} == {}


def test_no_room_has_more_than_18_files() -> None:
    rooms = {path.parent for path in files(PACKAGE)} - {PACKAGE}
    sizes = {
        str(room.relative_to(PACKAGE)): len([path for path in files(room) if path.parent == room])
        for room in rooms
    }

    assert {room: size for room, size in sizes.items() if size > 18} == {}


def test_the_top_of_the_package_has_at_most_26_entries() -> None:
    entries = {path.name for path in PACKAGE.iterdir()} - {"__init__.py", "__pycache__", "py.typed"}

    assert len(entries) <= 26, sorted(entries)


def test_the_design_shows_all_rooms() -> None:
    text = (PROJECT / "docs" / "design.md").read_text("utf-8")
    picture = text.partition("\n## Folders\n")[2].split("```")[1]
    shown = {name for line in picture.splitlines() for name in re.findall(r"\w+", line[:50])}
    entries = {path.stem for path in PACKAGE.iterdir()} - {"__init__", "__pycache__", "py"}

    assert shown == entries


def test_a_channel_is_composed_and_not_inherited_in_slices() -> None:
    channels = (
        redis_channel.Channel,
        redis_channel.SentinelChannel,
        ClusterChannel,
        ShardChannel,
        amqp_channel.Channel,
    )
    ours = {
        channel: [each for each in channel.__mro__ if each.__module__.startswith("celery_delayq")]
        for channel in channels
    }

    assert {channel: len(each) for channel, each in ours.items() if len(each) > 2} == {}
