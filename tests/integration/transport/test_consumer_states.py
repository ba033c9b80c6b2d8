"""Every transition between the states of a consumer, with a real Redis."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kombu import Connection, Queue

from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.transport.consumer import Consumer, State
from tests.integration.dispatch.conftest import publish

#: A transition: from where, by which method, to where.
Step = tuple[State, str, State]


class Stage:
    """A consumer of two queues, ``q`` that is leased and ``brief`` that is popped.

    Parameters
    ----------
    connection : Connection
        To Redis.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.channel: Any = connection.default_channel
        Queue("brief", auto_delete=True)(self.channel).declare()
        for name in ("q", "brief"):
            self.channel.basic_consume(name, False, self.handle, f"tag of {name}")
        self.consumer: Consumer = self.channel.consumer
        self.consumer.keeper = self.channel.deliveries.keeper
        client = self.channel.client
        client.connection = client.connection_pool.get_connection()
        self.messages: list[Any] = []
        #: What has been done.
        self.steps: list[Step] = []

    def handle(self, message: Any) -> None:
        self.messages.append(message)

    def call(self, name: str, **options: Any) -> Any:
        """Call a method of the consumer, and note the transition."""
        before = self.consumer.state
        try:
            return getattr(self.consumer, name)(**options)
        finally:
            self.steps.append((before, name, self.consumer.state))

    def publish(self, queue: str = "q", number: int = 1) -> None:
        publish(self.connection, queue, number)

    def connect(self) -> None:
        """Open the connection, as the poller does."""
        self.channel.client.connection.connect()

    @contextmanager
    def break_connection(self) -> Iterator[None]:
        """Have the next call fail that sends or reads."""
        self.channel.client.connection._sock.close()
        with pytest.raises((*self.connection.connection_errors, OSError)):
            yield

    # -- to each state

    def be_ready(self) -> None:
        assert self.consumer.state is State.READY

    def be_requested(self) -> None:
        self.publish()
        self.call("start")

    def be_looking(self) -> None:
        self._go_on(State.LOOKING)

    def be_blocked(self) -> None:
        self._go_on(State.BLOCKED)

    def _go_on(self, state: State) -> None:
        """Ask and read until the consumer is idle; the queues are empty."""
        while self.consumer.state is not state:
            self.call("start" if self.consumer.state is State.READY else "read")

    def be_repeating(self) -> None:
        self.be_requested()
        self.call("drop_connection")
        self.connect()

    def be_about_to_pop(self) -> None:
        self.publish("brief")
        self.be_requested()
        self.call("read")

    def be_closed(self) -> None:
        self.call("close", wait=False)


#: How to come to each state.
WAYS: dict[State, Callable[[Stage], None]] = {
    State.READY: Stage.be_ready,
    State.POP: Stage.be_about_to_pop,
    State.REPEAT: Stage.be_repeating,
    State.REQUESTED: Stage.be_requested,
    State.LOOKING: Stage.be_looking,
    State.BLOCKED: Stage.be_blocked,
    State.CLOSED: Stage.be_closed,
}


def ask_and_read(stage: Stage) -> None:
    stage.be_requested()
    stage.call("read")
    assert [each.queue for each in stage.consumer.taken] == ["q"]


def ask_while_handing_out(stage: Stage) -> None:
    stage.channel.basic_qos(0, 100, False)
    stage.publish(number=200)
    while not (stage.consumer.taken and stage.consumer.state is State.REQUESTED):
        if stage.consumer.taken:
            stage.call("next")
            stage.consumer.batch_size.note_delivery(1, 0.0)
        else:
            stage.call("read" if stage.consumer.state is State.REQUESTED else "start")


def repeat_while_handing_out(stage: Stage) -> None:
    ask_while_handing_out(stage)
    stage.call("drop_connection")
    stage.connect()
    stage.call("next")
    stage.call("read")


def repeat(stage: Stage) -> None:
    stage.be_repeating()
    stage.call("start")
    stage.call("read")
    assert [each.queue for each in stage.consumer.taken] == ["q"]


def teach_the_script(stage: Stage) -> None:
    stage.publish()
    ask_and_read(stage)
    stage.consumer.take_all()
    stage.channel.store.client.script_flush()
    for method in ("start", "read", "start", "read"):
        stage.call(method)
    assert [each.queue for each in stage.consumer.taken] == ["q"]


def lose_the_connection_while_reading(stage: Stage) -> None:
    stage.be_requested()
    with stage.break_connection():
        stage.channel._brpop_read()
    stage.steps.append((State.REQUESTED, "read", stage.consumer.state))


def look_and_wait(stage: Stage) -> None:
    stage.be_looking()
    stage.be_blocked()
    stage.publish()
    stage.call("read")


def pop(stage: Stage) -> None:
    stage.be_about_to_pop()
    stage.call("start")
    assert stage.call("read").queue == "brief"


def cancel_what_would_be_popped(stage: Stage) -> None:
    stage.be_about_to_pop()
    stage.channel.basic_cancel("tag of brief")
    stage.call("start")


def have_no_room(stage: Stage) -> None:
    stage.channel.basic_qos(0, 1, False)
    ask_and_read(stage)
    stage.channel.hand_out.hand_out_one()
    stage.call("start")


def lose_it_while_it_looks(stage: Stage) -> None:
    stage.be_looking()
    stage.call("drop_connection")


def lose_it_while_it_waits(stage: Stage) -> None:
    stage.be_blocked()
    stage.call("drop_connection")


def abandon(stage: Stage) -> None:
    stage.be_repeating()
    stage.call("abandon")


def cancel_while_a_reply_comes(stage: Stage) -> None:
    stage.be_requested()
    stage.call("cancel", queue="q")
    assert [each.queue for each in stage.consumer.take_cancelled()] == ["q"]


def cancel_while_a_look_finds_something(stage: Stage) -> None:
    stage.publish("brief")
    cancel_while_a_reply_comes(stage)


def cancel_where_the_script_is_unknown(stage: Stage) -> None:
    stage.publish()
    ask_and_read(stage)
    stage.consumer.take_all()
    stage.channel.store.client.script_flush()
    stage.call("start")
    stage.call("cancel", queue="q")


def find_all_refused(stage: Stage) -> None:
    """A list of another type stands where a sign is waited for."""
    stage.be_looking()
    stage.call("read")
    stage.channel.store.client.set("{q}:wake", "no list")
    for method in ("start", "read", "start"):
        stage.call(method)


def be_refused_what_may_not_run(stage: Stage) -> None:
    """Where revokes cannot be read, nothing is handed out, and nothing asked for until later."""
    store = stage.channel.store
    stage.consumer.serves_worker = True
    store.control.revoke(60, ["another"])
    store.client.set(store.keys.revoked, "no set")
    stage.be_requested()
    stage.call("read")
    assert not stage.consumer.taken
    stage.call("start")
    stage.consumer.keeper.requeue_abandoned(store)
    assert store.client.llen("q") == 1


def lose_it_before_it_asks(stage: Stage) -> None:
    stage.publish()
    with stage.break_connection():
        stage.call("start")


def lose_it_before_it_asks_again(stage: Stage) -> None:
    stage.be_repeating()
    with stage.break_connection():
        stage.call("start")


def lose_it_before_it_pops(stage: Stage) -> None:
    stage.be_about_to_pop()
    with stage.break_connection():
        stage.call("start")


def lose_it_before_it_asks_for_more(stage: Stage) -> None:
    """Twice: the requests are the same as before."""
    stage.channel.basic_qos(0, 100, False)
    stage.publish(number=200)
    while len(stage.consumer.taken) < 4:
        stage.call("start")
        stage.call("read")
        stage.consumer.batch_size.note_delivery(1, 0.0)
    with stage.break_connection():
        while stage.consumer.taken:
            stage.call("next")
    stage.connect()
    with stage.break_connection():
        stage.call("next")


def _abandon_in(state: State) -> Callable[[Stage], None]:
    def abandon_there(stage: Stage) -> None:
        WAYS[state](stage)
        stage.call("abandon")

    return abandon_there


ABANDONED = [_abandon_in(state) for state in (State.REQUESTED, State.LOOKING, State.BLOCKED)]

WALKS = (
    ask_and_read,
    ask_while_handing_out,
    repeat_while_handing_out,
    repeat,
    teach_the_script,
    lose_the_connection_while_reading,
    look_and_wait,
    pop,
    cancel_what_would_be_popped,
    have_no_room,
    lose_it_while_it_looks,
    lose_it_while_it_waits,
    abandon,
    cancel_while_a_reply_comes,
    cancel_while_a_look_finds_something,
    cancel_where_the_script_is_unknown,
    find_all_refused,
    be_refused_what_may_not_run,
    lose_it_before_it_asks,
    lose_it_before_it_asks_again,
    lose_it_before_it_asks_for_more,
    lose_it_before_it_pops,
    *ABANDONED,
)


@pytest.fixture
def new_stage(delayq_redis: RedisUnderTest) -> Iterator[Callable[[], Stage]]:
    """Make a stage on an empty Redis."""
    connections: list[Connection] = []

    def make() -> Stage:
        delayq_redis.client.flushall()
        connections.append(Connection(delayq_redis.server.url_for("delayq+redis")))
        return Stage(connections[-1])

    yield make
    for each in connections:
        each.release()


def documented() -> set[Step]:
    """Return the transitions in the table of the docstring."""
    text = inspect.getdoc(Consumer) or ""
    _, head, table, *_ = re.split(r"^=[= ]+$", text, flags=re.MULTILINE)
    assert head.split() == ["from", "by", "to"]
    found: set[Step] = set()
    for row in re.findall(r"^[A-Za-z].*\n(?: +.*\n)*", table, flags=re.MULTILINE):
        before, _, rest = row.strip().partition(" ")
        starts = [*State][:-1] if before == "any" else [State[before]]
        ends = [
            State[word] for word in re.findall(r"\b[A-Z]{3,}\b", rest) if word in State.__members__
        ]
        for method in re.findall(r"`(\w+)`", rest):
            found |= {(start, method, end) for start in starts for end in ends}
    return found


def test_the_table_of_transitions_is_true_and_whole(new_stage: Callable[[], Stage]) -> None:
    done: set[Step] = set()
    for walk in WALKS:
        stage = new_stage()
        walk(stage)
        done |= {*stage.steps}
    for state, reach in WAYS.items():
        stage = new_stage()
        reach(stage)
        assert stage.consumer.state is state
        if state is not State.CLOSED:
            stage.call("close", wait=False)
        done |= {*stage.steps}

    handing_out = (State.READY, "next", State.READY), (State.REQUESTED, "next", State.REQUESTED)
    assert done - {*handing_out} == documented()


@pytest.mark.parametrize("state", State)
def test_all_other_calls_change_nothing(new_stage: Callable[[], Stage], state: State) -> None:
    """Reading is left out: it needs a reply that is awaited."""
    methods = ("start", "next", "drop_connection", "abandon")
    for method in methods:
        if any((state, method) == (start, by) for start, by, _ in documented()):
            continue
        stage = new_stage()
        WAYS[state](stage)

        stage.call(method)

        assert stage.consumer.state is state, method
