"""Names of keys: ours carry the queue as hash tag, the ready lists are kombu's."""

from __future__ import annotations

import pytest
from kombu import Connection

from celery_delayq.errors import ConfigError, RecordError
from celery_delayq.settings import Limits
from celery_delayq.store.keys import DEFAULT_SEPARATOR, DEFAULT_STEPS, Keys, Layout


def test_our_keys_of_a_queue_share_its_hash_tag() -> None:
    keys = Keys("app.").queue("mail")

    assert keys.due == "app.{mail}:due"
    assert all("{mail}" in name for name in (*keys.schedule, keys.dead, keys.dead_at))


def test_on_a_cluster_the_tag_stands_before_the_name_of_a_single_redis() -> None:
    keys = Keys("app.").of_tag("dq07-12")

    assert keys.queue("mail").due == "app.{dq07-12}:{mail}:due"
    assert keys.ready("mail", 3, Layout()) == "app.{dq07-12}:mail\x06\x163"
    assert keys.next_due == "app.{dq07-12}:delayq:next_due"


def test_a_service_is_logged_with_its_shard_on_a_cluster() -> None:
    keys = [Keys("app."), Keys("app.").of_tag("dq07-12")]

    assert [each.named("dispatcher") for each in keys] == [
        "dispatcher",
        "dispatcher for the shard of dq07-12",
    ]


def test_a_prefix_with_a_brace_is_refused_on_a_cluster() -> None:
    with pytest.raises(ConfigError, match=r"global_keyprefix '\{app\}:': expected one without"):
        Keys("{app}:").of_tag("dq07-12")


def test_names_with_one_prefix_in_one_database_have_one_text() -> None:
    assert str(Keys("p.", 1)) == str(Keys("p.", 1))
    assert len({str(Keys(prefix, database)) for prefix in ("", "p.") for database in (0, 1)}) == 4


def test_the_wake_channel_differs_between_databases() -> None:
    assert Keys("", 0).wake != Keys("", 1).wake


def test_ready_looks_have_the_names_that_kombu_gives_them() -> None:
    channel_cls = Connection("redis://").transport.Channel
    assert (channel_cls.sep, tuple(channel_cls.priority_steps)) == (
        DEFAULT_SEPARATOR,
        DEFAULT_STEPS,
    )
    assert list(Keys("p.").ready_lists("q", Layout())) == [
        "p.q",
        "p.q\x06\x163",
        "p.q\x06\x166",
        "p.q\x06\x169",
    ]


@pytest.mark.parametrize(("priority", "step"), [(0, 0), (2, 0), (3, 3), (5, 3), (8, 6), (9, 9)])
def test_a_priority_belongs_to_the_step_below_it(priority: int, step: int) -> None:
    assert Layout().step(priority) == step


def test_a_layout_is_read_from_the_registry_as_it_was_written() -> None:
    layout = Layout(":", (0, 5), Limits(2.5, 10, 20, 3600.0, 50, archived=True, history=7))

    assert Layout.loads(layout.text) == layout


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"sep": ":", "steps": ["x"]}', b"\xff"])
def test_an_unreadable_layout_is_an_error(text: str | bytes) -> None:
    with pytest.raises(RecordError):
        Layout.loads(text)
