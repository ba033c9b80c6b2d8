"""The stream of dead letters, whatever happens to it, and the connection that writes it."""

from __future__ import annotations

import json
import pickle
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace
from typing import Any

import amqp
import pytest
from kombu import Queue
from kombu.exceptions import OperationalError

from celery_delayq import DelayQ, ReasonKind
from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from celery_delayq.errors import ConfigError, InvalidOption, NoQueue, NotSupported
from celery_delayq.model.dead_letter import DeadFilter
from celery_delayq.model.envelope import Due
from celery_delayq.model.scheduled import Outcome
from celery_delayq.testing import wait_until
from celery_delayq.transport.amqp.dead_letter_connection import NewDeadLetter
from celery_delayq.transport.amqp.dead_letters import DeadLetterStream, View
from celery_delayq.transport.amqp.frames import encoded
from celery_delayq.transport.amqp.messages import Routed
from celery_delayq.transport.amqp.sizes import ready_messages
from tests.integration.conftest import NewRabbitMQ
from tests.support import TIMEOUT, dead_letters
from tests.support.cli import CommandLine
from tests.support.rabbitmq import RabbitMQScene as Scene


@pytest.fixture
def scene(new_rabbitmq: NewRabbitMQ) -> Scene:
    return new_rabbitmq()


@pytest.fixture
def store(scene: Scene) -> Any:
    """What a worker stores dead letters with."""
    return scene.channel.connection.delayq.dead_letter_connection


def _add(store: Any, id: str) -> None:
    store.ask(lambda stream: stream.add("orders", id, "why", b"{}"))


def _ids(store: Any) -> list[str]:
    return [each.dead_lettered.id for each in store.read()]


def test_a_dead_letter_is_kept_although_its_stream_was_deleted(scene: Scene, store: Any) -> None:
    _add(store, "a")
    scene.channel.queue_delete("delayq.dead_letters")

    _add(store, "b")

    assert _ids(store) == ["b"]


def test_dead_letters_of_many_threads_are_each_kept_once(store: Any) -> None:
    ids = [f"{n}" for n in range(40)]
    with ThreadPoolExecutor(len(ids)) as pool:
        [*pool.map(lambda id: store.add(NewDeadLetter("orders", id, "why", b"{}")), ids)]

    assert sorted(_ids(store)) == sorted(ids)


def test_other_messages_in_the_streams_hide_no_dead_letter(scene: Scene, store: Any) -> None:
    store.check()
    _add(store, "a")
    delayq = DelayQ.of(scene.app)
    for stream in ("delayq.dead_letters", "delayq.dead_letters.settled"):
        for body, headers in ((b"{", {}), (b"5", {"delayq-queue": "orders"}), (b"\xff", {})):
            content = encoded(body, {"delivery_mode": 2, "application_headers": headers})
            scene.channel.send([Routed(content, "", stream)])

    assert [each.reason for each in delayq.dead_letters()] == ["why", "unreadable dead letter"]
    delayq.purge("a")
    assert [each.reason for each in delayq.dead_letters()] == ["unreadable dead letter"]


def test_a_reader_that_ends_early_leaves_the_rest_in_the_stream(store: Any) -> None:
    ids = [f"{n}" for n in range(3000)]
    store.ask(lambda stream: stream.restore(("orders", id, b"2 0 0 0 why\n{}") for id in ids))

    for _ in range(5):
        assert next(iter(store.read())).dead_lettered.id == "0"
        page, _ = store.ask(lambda stream: stream.page(View(set(), 0, -1), 0))
        assert len(page) == 1

    assert _ids(store) == ids


def test_one_that_was_listed_is_read_again_at_its_place(
    scene: Scene, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for id in "abc":
        _add(store, id)
    delayq: Any = DelayQ.of(scene.app)
    read = []
    page = DeadLetterStream.page

    def noted(stream: DeadLetterStream, view: View, first: int) -> Any:
        read.append((first, view.last_offset))
        return page(stream, view, first)

    last: Any = [*delayq.dead_letters()][-1]
    monkeypatch.setattr(DeadLetterStream, "page", noted)

    assert [delayq.purge(last) for _ in range(2)] == [Outcome.DONE, Outcome.UNKNOWN]

    assert read == [(last.offset, last.offset)] * 2
    assert _ids(store) == ["a", "b"]


@pytest.mark.parametrize("no_ack", [True, False])
def test_a_channel_holds_only_messages_that_are_to_be_acknowledged(
    scene: Scene, no_ack: bool
) -> None:
    queue = Queue("orders", no_ack=no_ack)
    found: list[Any] = []
    for n in range(4):
        scene.send(f"{n}", 0)
    with scene.connection.Consumer([queue], no_ack=no_ack, on_message=found.append):
        while len(found) < 4:
            scene.connection.drain_events(timeout=TIMEOUT)
    scene.send("got", 0)
    found.append(queue(scene.channel).get(no_ack=no_ack))

    assert len(scene.channel._unacked) == (0 if no_ack else 5)
    for message in found:
        if not no_ack:
            message.ack()
    assert not scene.channel._unacked


def test_the_connection_for_dead_letters_has_no_heartbeats(scene: Scene) -> None:
    """RabbitMQ would close it, as nobody sends them."""
    with scene.app.connection_for_read(heartbeat=20) as connection:
        connection.connect()
        store = connection.transport.dead_letter_connection
        _add(store, "a")

        assert connection.connection.heartbeat == 20
        assert store._connection.connection.heartbeat == 0


def test_the_connection_is_closed_with_its_object_and_opens_again(scene: Scene, store: Any) -> None:
    delayq = DelayQ.of(scene.app)
    for _ in range(2):
        assert delayq.count_dead() == 0
        assert store._connection.connected

        delayq.close()

        assert not store._connection.connected


def test_what_is_refused_in_a_replay_of_many_holds_up_no_other_and_repeats_none(
    scene: Scene, store: Any
) -> None:
    delayq = DelayQ.of(scene.app)
    for id, queue in {"a": "back", "b": "gone", "c": "back", "d": "gone"}.items():
        scene.send(id, 3, queue=queue)  # by then all are sent, and the queues are deleted
    for queue in ("back", "gone"):
        scene.channel.queue_delete(queue)
    wait_until(lambda: len([*delayq.dead_letters()]) == 4, TIMEOUT, "all are dead")
    Queue("back")(scene.channel).declare()

    replays = [
        delayq.dead_letters.replay_all(DeadFilter(), everything=True, rate=rate).outcomes
        for rate in (None, None, 1000)
    ]

    refused = {Outcome.REFUSED: 2}
    assert replays == [{Outcome.DONE: 2, **refused}, refused, refused]
    assert scene.receive("back", 2).keys() == {"a", "c"}
    assert sorted(_ids(store)) == ["b", "d"]
    with pytest.raises(NoQueue):
        delayq.dead_letters.replay("b")


def test_queues_that_do_not_exist_cost_no_channel(scene: Scene) -> None:
    connection = scene.channel.connection
    channels = {*connection.channels}

    ready_messages(connection, [f"missing-{number}" for number in range(20)])
    scene.channel.dead_letters.view()

    assert {*connection.channels} == channels


@pytest.fixture
def max_message_size(
    delayq_rabbitmq_server: EmbeddedRabbitMQ,
) -> Iterator[Callable[[int], None]]:
    def limit(size: int) -> None:
        # RabbitMQ 4 reads the setting once.
        delayq_rabbitmq_server.evaluate(
            f"application:set_env(rabbit, max_message_size, {size}), "
            f"persistent_term:put(max_message_size, {size})"
        )

    yield limit
    limit(16_777_216)


@pytest.mark.parametrize("is_unacked", [False, True])
def test_one_that_is_too_large_is_stored_without_its_message(
    max_message_size: Callable[[int], None],
    store: Any,
    caplog: pytest.LogCaptureFixture,
    is_unacked: bool,
) -> None:
    """With early acks, and with late ones, where the worker holds the message until then."""
    max_message_size(10_000)
    message = json.dumps({"headers": {"task": "t", "argsrepr": "x" * 5000}, "body": "x" * 20_000})
    unacked = (SimpleNamespace(connection=store, ack_stored=len), 1) if is_unacked else ()

    store.add(NewDeadLetter("orders", "a", "why", message.encode(), b'{"n": 1}'), *unacked)
    wait_until(lambda: _ids(store) == ["a"], TIMEOUT, "it is stored")

    [found] = store.read()
    assert found.dead_lettered.message == b""
    assert found.dead_lettered.reason.startswith("why (its message of 25,0")
    details = json.loads(found.dead_lettered.details)
    assert details == {"n": 1, "headers": {"task": "t"}, "size": len(message)}
    assert "'a' is stored without its message" in caplog.text


def test_one_that_is_never_taken_holds_up_no_other(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, ended = Event(), Event()

    def wait(_: float) -> None:
        tried.set()
        assert ended.wait(TIMEOUT)

    monkeypatch.setattr(store, "_wait", wait)
    not_encodable: Any = float("nan")
    with store._lock:
        for id in ("first", not_encodable, "next"):
            store.add(NewDeadLetter("orders", id, "why", b"{}"))

    assert tried.wait(TIMEOUT)
    assert _ids(store) == ["first", "next"]
    store._waiting.clear()
    ended.set()


def test_one_whose_message_went_back_ends_no_outage(
    store: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(_: NewDeadLetter) -> None:
        raise OperationalError("away")

    caplog.set_level("INFO")
    monkeypatch.setattr(store, "_store", away)
    channel = SimpleNamespace(connection=store)
    store.add(NewDeadLetter("orders", "a", "why", b"{}"), channel, 1)
    wait_until(lambda: "takes no dead letter" in caplog.text, TIMEOUT, "it is logged")
    channel.connection = None
    wait_until(lambda: store._thread is None, TIMEOUT, "the thread has ended")

    assert "resumed" not in caplog.text


@pytest.mark.parametrize(
    ("settings", "queue", "pauses"), [({"max_length": 5}, "orders", True), ({}, "nowhere", False)]
)
def test_a_worker_pauses_after_errors_that_the_next_message_with_an_eta_would_meet(
    scene: Scene, new_rabbitmq: NewRabbitMQ, settings: dict[str, Any], queue: str, pauses: bool
) -> None:
    scene.send("a")
    channel = new_rabbitmq(**settings).channel
    headers = {"task": "shop.work", "id": "a"}
    message = amqp.Message("[]", application_headers=headers)

    assert not channel._put_off(message, queue, Due(int(time.time() * 1000) + 60_000))

    assert (channel._put_off_again_at > time.monotonic()) == pauses


def test_why_knows_dead_letters_only(scene: Scene, store: Any) -> None:
    _add(store, "a")
    delayq = DelayQ.of(scene.app)

    answer = delayq.why("a")

    assert (answer.state, answer.queue) == ("dead", "orders")
    assert [each.kind for each in answer.reasons] == [ReasonKind.DEAD]
    assert answer.reasons[0].values["reason"] == "why"
    with pytest.raises(NotSupported):
        delayq.why("b")
    delayq.close()


# -- replays with changes


def _got(scene: Scene, queue: str = "orders") -> Any:
    """Return the next message of a queue."""
    found: list[Any] = []

    def comes() -> bool:
        got = Queue(queue)(scene.channel).get(no_ack=True)
        found.extend([got] if got is not None else [])
        return bool(found)

    wait_until(comes, TIMEOUT, "the task is in its queue")
    return found[0]


#: Changes of a replay, and what the message then has: its queue, its headers and properties, and
#: its arguments.
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "args": ({"args": ["b", 2]}, {"args": ["b", 2], "argsrepr": "…"}),
    "no args": ({"args": []}, {"args": []}),
    "kwargs": ({"kwargs": {"n": [1, None]}}, {"kwargs": {"n": [1, None]}}),
    "both": ({"args": [1], "kwargs": {"n": 2}}, {"args": [1], "kwargs": {"n": 2}}),
    "priority": ({"priority": 7}, {"priority": 7}),
    "headers": ({"headers": {"tenant": "a", "flow": None}}, {"tenant": "a", "flow": None}),
    "expires": ({"expires": 3600}, {}),
    "no expiry": ({"expires": False}, {"expires": None}),
    "queue": ({"queue": "slow"}, {"queue": "slow"}),
    "countdown": ({"countdown": 0.3}, {}),
    "all": (
        {"args": [1], "kwargs": {"n": 2}, "priority": 3, "queue": "slow", "countdown": 0.1,
         "headers": {"tenant": "b"}},
        {"args": [1], "kwargs": {"n": 2}, "priority": 3, "queue": "slow", "tenant": "b"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", CHANGES)
def test_a_replay_makes_the_changes_of_its_message(
    scene: Scene, store: Any, name: str, many: bool
) -> None:
    changes, expected = CHANGES[name]
    changes, expected = dict(changes), {"args": ["a", ""], "kwargs": {}, **expected}
    queue = expected.pop("queue", "orders")
    for each in ("orders", "slow"):
        Queue(each)(scene.channel).declare()
    store.ask(
        lambda stream: stream.add(
            "orders", "a", "why", dead_letters.message("a", "shop.work", flow="x")
        )
    )
    delayq, began = DelayQ.of(scene.app), time.time()

    if many:
        countdown = changes.pop("countdown", None)
        changes["to_queue"] = changes.pop("queue", None)
        assert delayq.replay_all(task="shop.work", **changes).outcomes == {Outcome.DONE: 1}
        assert countdown is None or not [*delayq.dead_letters()]
    else:
        assert delayq.replay("a", **changes) is Outcome.DONE

    got = _got(scene, queue)
    assert time.time() - began >= changes.get("countdown", 0)
    args, kwargs, _ = got.payload
    found = {**got.properties, **got.headers, "args": args, "kwargs": kwargs}
    assert {name: found.get(name) for name in expected} == expected
    assert (found["id"], found["task"], found["retries"]) == ("a", "shop.work", 0)
    assert (found.get("expires") is not None) == (name == "expires")
    assert [*delayq.dead_letters()] == []


def ship(order: str, note: str) -> None:
    """Stand for any task."""


#: Changes that are refused, and the error; the dead letter stays.
REFUSED: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "args that the task does not take": ({"args": [1, 2, 3]}, ConfigError),
    "no arguments": ({"args": "b"}, ConfigError),
    "no JSON": ({"args": [object()], "kwargs": {}}, ConfigError),
    "priority": ({"priority": 999}, InvalidOption),
    "Celery's header": ({"headers": {"id": "b"}}, ConfigError),
    "no queue": ({"queue": "gone"}, NoQueue),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_change_leaves_the_dead_letter(scene: Scene, store: Any, name: str) -> None:
    changes, error = REFUSED[name]
    scene.app.task(name="shop.work", shared=False)(ship)
    Queue("orders")(scene.channel).declare()
    store.ask(
        lambda stream: stream.add("orders", "a", "why", dead_letters.message("a", "shop.work"))
    )

    with pytest.raises(error):
        DelayQ.of(scene.app).replay("a", **changes)

    assert _ids(store) == ["a"]
    assert Queue("orders")(scene.channel).get() is None


def test_pickled_arguments_are_changed_only_if_they_may_be_decoded(
    scene: Scene, store: Any
) -> None:
    before = json.loads(dead_letters.message("a", "shop.work"))
    pickled = dead_letters.packed(
        None, before["headers"], {**before["properties"], "body_encoding": "base64"},
        **{"content-type": "application/x-python-serialize", "content-encoding": "binary"},
    )  # fmt: skip
    body = pickle.dumps((("a",), {}, {}))
    pickled = json.dumps({**json.loads(pickled), "body": b64encode(body).decode()}).encode()
    Queue("orders")(scene.channel).declare()
    store.ask(lambda stream: stream.add("orders", "a", "why", pickled))
    delayq = DelayQ.of(scene.app)

    assert delayq.replay("a", args=["b"]) is Outcome.UNREADABLE
    assert delayq.replay("a", args=["b"], unpickle=True) is Outcome.DONE

    got = _got(scene)
    assert got.content_type == "application/x-python-serialize"
    assert [*pickle.loads(got.body)[0]] == ["b"]


def test_the_command_replays_with_changes(scene: Scene, store: Any) -> None:
    cli = CommandLine(scene.app)
    Queue("slow")(scene.channel).declare()
    for id in ("a", "b"):
        data = dead_letters.message(id, "shop.work")
        store.ask(lambda stream, id=id, data=data: stream.add("orders", id, "why", data))
    changes = ["--args", '["new"]', "--priority", "3", "--header", "tenant=t", "--to-queue", "slow"]

    assert cli("dead", "replay", "a", *changes).code == 0
    assert cli("dead", "replay", "--arg", "0=b", "--yes", *changes).code == 0

    for id in ("a", "b"):
        got = _got(scene, "slow")
        assert (got.headers["id"], got.headers["tenant"]) == (id, "t")
        assert (got.payload[0], got.properties["priority"]) == (["new"], 3)
    assert _ids(store) == []
