"""The promises of every broker of ours.

A new broker is a line in `BROKERS`. If a broker keeps a promise in another way, the difference is
in this module.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery, signals
from celery.schedules import crontab
from kombu import Connection, Consumer, Exchange, Queue

from celery_delayq import DelayQ, Limit
from celery_delayq.errors import InvalidCursor, NotSupported, QueueFull
from celery_delayq.model import envelope
from celery_delayq.model.broker import Deliveries
from celery_delayq.model.dead_letter import DeadFilter, pack_details
from celery_delayq.model.limits.of_app import AppLimits
from celery_delayq.model.scheduled import Outcome
from celery_delayq.testing import wait_until
from celery_delayq.utils import message_json
from tests.support import TIMEOUT

#: Each broker, and the fixture that gives the URL of an empty one.
BROKERS = {
    "redis": "delayq_broker_url",
    "cluster": "delayq_cluster",
    "rabbitmq": "delayq_rabbitmq",
}

QUEUE = "orders"
DELAY = 0.3  # seconds


class Scene:
    """An app on a broker, and a consumer of one of its queues that is not a worker."""

    def __init__(self, url: str) -> None:
        self.app = Celery("shop", broker=url, set_as_current=False)
        self.app.conf.task_default_queue = QUEUE
        self.delayq = DelayQ(self.app)
        self.connection = Connection(url)
        self.received: list[Any] = []

    @property
    def channel(self) -> Any:
        return self.connection.default_channel

    def send(self, id: str, **options: Any) -> None:
        self.app.send_task("shop.work", (id,), task_id=id, **options)

    def receive(self, number: int = 1) -> list[Any]:
        """Return *number* messages, not acknowledged, as soon as they are there."""
        messages: list[Any] = []
        queue = Queue(QUEUE, Exchange(QUEUE), QUEUE)

        def note(message: Any) -> None:
            message.received = time.time()
            messages.append(message)

        consumer = Consumer(self.connection, [queue], on_message=note)
        with consumer:
            wait_until(lambda: self._drained(messages, number), TIMEOUT, "messages")
        return messages

    def _drained(self, messages: list[Any], number: int) -> bool:
        if len(messages) < number:
            with suppress(TimeoutError):
                self.connection.drain_events(timeout=0.2)
        return len(messages) >= number

    def has_more(self) -> bool:
        """Return whether a message is ready and nobody has it."""
        message = self.channel.basic_get(QUEUE)
        if message is not None:
            message.requeue()
        return message is not None

    def dead_letters(self) -> list[tuple[str, str | None, str, str | None]]:
        """Return id, queue, reason and exception of each dead letter."""
        found = self.delayq.dead_letters()
        return sorted((each.id, each.queue, each.reason, each.exception) for each in found)


@pytest.fixture(params=BROKERS)
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    scene = Scene(request.getfixturevalue(BROKERS[request.param]))
    try:
        yield scene
    finally:
        scene.connection.release()
        scene.delayq.close()
        scene.app.close()


def test_its_deliveries_have_what_the_protocol_names(scene: Scene) -> None:
    deliveries = scene.channel.deliveries
    assert isinstance(deliveries, Deliveries)
    for name, promised in inspect.getmembers(Deliveries, inspect.isfunction):
        if name.startswith("_"):
            continue
        # The class must accept each call that the protocol allows.
        wanted = inspect.signature(promised).parameters.values()
        actual = inspect.signature(getattr(deliveries, name))
        named = {each.name: None for each in wanted if each.kind is each.KEYWORD_ONLY}
        by_place = [each for each in wanted if each.kind is each.POSITIONAL_OR_KEYWORD]
        actual.bind(*by_place[1:], **named)


# -- publishing


def _soon() -> datetime:
    return datetime.now(timezone.utc) + timedelta(seconds=DELAY)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(lambda: {}, id="at once"),
        pytest.param(lambda: {"countdown": DELAY}, id="countdown"),
        pytest.param(lambda: {"eta": _soon()}, id="eta"),
        pytest.param(lambda: {"countdown": DELAY, "priority": 5}, id="priority"),
        pytest.param(lambda: {"eta": datetime(2001, 1, 1, tzinfo=timezone.utc)}, id="past eta"),
    ],
)
def test_a_task_comes_once_and_never_early(
    scene: Scene, options: Callable[[], dict[str, Any]]
) -> None:
    given = options()
    sent = time.time()
    due = given["eta"].timestamp() if "eta" in given else sent + given.get("countdown", 0)
    scene.send("a", **given)

    [message] = scene.receive()

    assert message.headers["id"] == "a"
    assert message.received >= due
    message.ack()
    assert not scene.has_more()


def test_the_eta_that_a_handler_of_publishing_leaves_counts(scene: Scene) -> None:
    moved: list[datetime] = []

    def move(headers: dict[str, Any], **_: Any) -> None:
        moved.append(_soon())
        headers["eta"] = moved[0].isoformat()

    signals.before_task_publish.connect(move)
    try:
        scene.send("a", countdown=3600)
    finally:
        signals.before_task_publish.disconnect(move)

    [message] = scene.receive()

    assert message.received >= moved[0].timestamp()
    message.ack()


def test_a_batch_is_sent_when_it_is_flushed(scene: Scene) -> None:
    channel = scene.channel
    scene.send("template")
    [template] = scene.receive()
    template.ack()
    batch = channel.create_publish_batch(100)
    for number in range(10):
        message = channel.prepare_message(
            template.body,
            headers={**template.headers, "id": f"{number}"},
            content_type=template.content_type,
            content_encoding=template.content_encoding,
            properties={"delivery_mode": 2, "delivery_tag": uuid4().hex},
        )
        batch.publish(message, exchange=QUEUE, routing_key=QUEUE)
    assert not scene.has_more()

    batch.flush()

    messages = scene.receive(10)
    assert [message.headers["id"] for message in messages] == [f"{n}" for n in range(10)]


def test_only_a_queue_that_lasts_can_have_a_schedule(scene: Scene) -> None:
    temporary = Queue("temporary", Exchange("temporary"), "temporary", auto_delete=True)
    lasting = Queue(QUEUE, Exchange(QUEUE), QUEUE)
    for queue in (temporary, lasting):
        queue(scene.channel).declare()

    assert [scene.channel.can_schedule(name) for name in (QUEUE, "temporary")] == [True, False]


# -- the end of a delivery

DETAILS = pack_details({"exception": "ValueError", "message": "no stock"})


def _fail(deliveries: Any, message: Any) -> None:
    assert deliveries.note_failure(message.delivery_tag, reason="failed: no stock", details=DETAILS)
    message.reject()


def _fail_after_ack(deliveries: Any, message: Any) -> None:
    data = message_json.encode(message._raw)
    message.ack()
    deliveries.add_dead_letter_copy(
        message.delivery_tag, QUEUE, "a", "failed: no stock", data, DETAILS
    )


#: How a delivery ends: the call, the dead letter after the call, and whether the task is requeued.
ENDINGS: dict[str, tuple[Callable[[Any, Any], Any], list[Any], bool]] = {
    "acknowledged": (lambda _, message: message.ack(), [], False),
    "rejected": (lambda _, message: message.reject(), [("a", QUEUE, "rejected", None)], False),
    "requeued": (lambda _, message: message.requeue(), [], True),
    "failed": (_fail, [("a", QUEUE, "failed: no stock", "ValueError")], False),
    "dead-lettered": (
        lambda deliveries, message: deliveries.add_dead_letter(
            message.delivery_tag, "a", "too old"
        ),
        [("a", QUEUE, "too old", None)],
        False,
    ),
    "failed after its acknowledgement": (
        _fail_after_ack,
        [("a", QUEUE, "failed: no stock", "ValueError")],
        False,
    ),
    "connection closed": (
        lambda _, message: message.channel.connection.client.release(),
        [],
        True,
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_delivery_ends_in_one_place(scene: Scene, ending: str) -> None:
    end, dead_letters, comes_back = ENDINGS[ending]
    scene.send("a")
    [message] = scene.receive()

    end(message.channel.deliveries, message)

    if comes_back:
        [again] = scene.receive()
        assert again.headers["id"] == "a"
        assert envelope.own_of(again.properties)["deliveries"] == 2
        again.ack()
    assert scene.dead_letters() == dead_letters
    assert not scene.has_more()


def test_a_tag_that_is_not_held_is_said_to_be_none(scene: Scene) -> None:
    deliveries = scene.channel.deliveries

    assert not deliveries.note_failure("unknown", reason="failed")
    assert not deliveries.add_dead_letter("unknown", "a", "failed")
    deliveries.note_cancelled("unknown")
    assert scene.dead_letters() == []


# -- dead letters


def test_dead_letters_are_read_replayed_and_purged(scene: Scene) -> None:
    dead_letters = scene.delayq.dead_letters
    for id in ("a", "b", "c", "d"):
        scene.send(id)
    for message in scene.receive(4):
        message.reject()

    assert [each.id for each in dead_letters()] == ["a", "b", "c", "d"]
    assert dead_letters.count() == dead_letters.count(DeadFilter(queue=QUEUE)) == 4
    found = dead_letters.get("b")
    assert found is not None
    assert (found.task, found.args) == ("shop.work", ["b"])
    assert dead_letters.purge(found) is Outcome.DONE
    changes: dict[str, Any] = {"args": ["changed"], "headers": {"tenant": "a"}, "expires": 3600}
    assert dead_letters.replay("c", **changes) is Outcome.DONE
    everything = DeadFilter(task="shop.work")
    assert dead_letters.replay_all(everything, dry_run=True).done == 2
    assert dead_letters.replay_all(everything).done == 2
    assert [dead_letters.purge("b"), dead_letters.replay("c")] == [Outcome.UNKNOWN] * 2
    replayed = scene.receive(3)
    arguments = {message.headers["id"]: message.payload[0] for message in replayed}
    assert arguments == {"c": ["changed"], "a": ["a"], "d": ["d"]}
    [changed] = [each for each in replayed if each.headers["id"] == "c"]
    assert changed.headers["tenant"] == "a"
    assert changed.headers["expires"] is not None
    for message in replayed:
        message.reject()
    assert dead_letters.purge_all(DeadFilter(), everything=True).done == 3
    assert scene.dead_letters() == []
    assert not scene.has_more()


def test_dead_letters_are_searched_page_by_page(scene: Scene) -> None:
    dead_letters = scene.delayq.dead_letters
    for id in ("a", "b", "c", "d"):
        scene.send(id)
    for message in scene.receive(4):
        message.reject()

    fields: Any
    for fields, wanted in (({}, ["a", "b", "c", "d"]), ({"arg": {"0": "c"}}, ["c"])):
        found: list[str] = []
        cursor: str | None = None
        for _ in range(6):
            page = dead_letters.list(limit=1, cursor=cursor, **fields)
            found += [each.id for each in page]
            cursor = page.cursor
            if cursor is None:
                break
        assert found == wanted
        assert [each.id for each in dead_letters(**fields)] == wanted
    with pytest.raises(InvalidCursor):
        dead_letters.list(limit=1, cursor="nonsense")
    assert dead_letters.count(arg={"0": "c"}) == 1
    assert dead_letters.replay_all(arg={"0": "a"}, args=["new"]).outcomes == {Outcome.DONE: 1}
    [replayed] = scene.receive()
    assert (replayed.headers["id"], replayed.payload[0]) == ("a", ["new"])
    replayed.ack()
    assert dead_letters.purge_all(arg={"0": "b"}).done == 1
    assert [each.id for each in dead_letters()] == ["c", "d"]


# -- calls that need Redis


def _exceed_limit(scene: Scene) -> None:
    scene.app.conf.broker_transport_options = {"delayq": {"max_scheduled": 1}}
    scene.send("a", countdown=60)
    if scene.delayq.has_store:
        with pytest.raises(QueueFull):
            scene.send("b", countdown=60)


def _send_limited(scene: Scene) -> None:
    AppLimits({"shop.*": Limit("shop", rate=1)}).share(scene.app)
    scene.send("a", countdown=60)


#: Calls that only a broker with Redis can do.
CALLS: dict[str, Callable[[Scene], Any]] = {
    "list": lambda scene: scene.delayq.count(),
    "cancel": lambda scene: scene.delayq.cancel("a"),
    "update": lambda scene: scene.delayq.update("a", priority=3),
    "rename": lambda scene: scene.delayq.rename("shop.work", "shop.new"),
    "rewrite": lambda scene: scene.delayq.rewrite(lambda _: None),
    "reschedule": lambda scene: scene.delayq.reschedule("a", countdown=1),
    "unique": lambda scene: scene.send("a", unique_key="k", on_conflict="error"),
    "limit": _send_limited,
    "pause": lambda scene: scene.delayq.pause(task="shop.work"),
    "periodic": lambda scene: scene.delayq.periodic.add("nightly", crontab(hour=3), "shop.work"),
    "max_scheduled": _exceed_limit,
}


@pytest.mark.parametrize("call", CALLS)
def test_redis_does_each_call_and_rabbitmq_refuses_it(scene: Scene, call: str) -> None:
    if scene.delayq.has_store:
        CALLS[call](scene)
        return
    with pytest.raises(NotSupported, match=scene.connection.transport.driver_type):
        CALLS[call](scene)


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_a_broker_that_is_not_ours_is_named_with_what_to_write(scheme: str) -> None:
    """The broker is not contacted: nobody listens there."""
    with (
        Celery("stock", broker=f"{scheme}://127.0.0.1:1//", set_as_current=False) as app,
        pytest.raises(NotSupported, match=rf"{scheme}://.*begins with delayq\+"),
    ):
        DelayQ(app).count()


@pytest.mark.parametrize("scheme", ["redis", "amqp", "delayq+amqp"])
@pytest.mark.parametrize("args", [(), ("too", "many")])
@pytest.mark.parametrize("every", [60, -1])
def test_what_a_broker_cannot_do_comes_before_what_is_wrong_with_an_entry(
    scheme: str, args: tuple[str, ...], every: int
) -> None:
    with Celery("stock", broker=f"{scheme}://127.0.0.1:1//", set_as_current=False) as app:
        app.task(name="shop.work", shared=False)(lambda: None)
        periodic = DelayQ(app).periodic

        with pytest.raises(NotSupported):
            periodic.add("nightly", every, "shop.work", args)
        with pytest.raises(NotSupported):
            periodic.update("nightly", schedule=every, args=args)
