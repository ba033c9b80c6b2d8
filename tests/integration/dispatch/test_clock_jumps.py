"""Redis' clock is set an hour back or forward: nothing waits for a time that it has left.

Each cell stores a time, the clock is set, in half of the cells another dispatcher takes over then,
and what the time decides goes on at once. ``tests/support/stored_times.py`` says which cell
judges which stored time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import pytest
from celery import Celery
from celery.worker import state as worker_state
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.dispatch.dispatcher import Dispatcher
from celery_delayq.embedded import EmbeddedRedis
from celery_delayq.integration import beat_guard
from celery_delayq.integration.pauses_and_revokes import Controls
from celery_delayq.model.envelope import with_skip_after
from celery_delayq.periodic.runner import PeriodicRunner
from celery_delayq.settings import Limits, Settings
from celery_delayq.store.keys import Keys, Layout
from celery_delayq.store.leases import AcquireReply
from celery_delayq.store.store import Store
from celery_delayq.testing import wait_until
from tests.lua.bench import DEFAULT, QUEUE, Bench, bodies, labelled, message_of
from tests.support.faults.clocks import ServerClock
from tests.support.stored_times import JUDGED

HOUR = 3600

#: Most seconds after which something that goes on at once is done, on a slow machine.
AT_ONCE = 60.0

#: Seconds of the short leases and turns.
LEASE = 1.5

Cell = Callable[["World"], Iterator[None]]


class World:
    """A server whose clock can be set, a store, and what dispatches."""

    def __init__(self, server: EmbeddedRedis, clock: ServerClock, stack: ExitStack) -> None:
        self.server, self.clock, self._stack = server, clock, stack
        self.client = stack.enter_context(server.client())
        self.store = Bench(self.client, Keys(), DEFAULT)
        self.url = server.url_for("delayq+redis")
        #: By how much the clock was set.
        self.jump = 0
        #: Starts what goes on after the jump, in the cells that need something.
        self.start: Callable[[], Callable[[], None]] | None = None
        self._stop: Callable[[], None] = lambda: None

    def run(self, start: Callable[[], Callable[[], None]]) -> None:
        """Start what dispatches, with a function that returns how to stop it."""
        self.start, self._stop = start, start()

    def dispatch(self) -> None:
        """Start a dispatcher."""
        self.run(self._dispatcher)

    def set(self, seconds: int, *, changes: bool) -> None:
        """Set the clock; where that *changes* who dispatches, another one starts then."""
        self.jump = seconds
        if changes:
            self._stop()
        self.clock.set(seconds)
        wait_until(
            lambda: abs(self.store.now_ms() / 1000 - time.time() - seconds) < AT_ONCE,
            AT_ONCE,
            "the server reads the set clock",
        )
        if changes and self.start is not None:
            self._stop = self.start()

    def end(self) -> None:
        self._stop()

    def _dispatcher(self) -> Callable[[], None]:
        store = Store(Redis(port=self.server.port), Keys(), Layout())
        thread = Dispatcher(store, Settings.from_options({"delayq": {"lease": 3.0}}))
        thread.start()

        def stop() -> None:
            thread.stop()
            thread.join()

        return stop

    def limit(self, **limits: Any) -> None:
        """Set the limits of the queue."""
        self.client.hset("delayq:queues", QUEUE, Layout(limits=Limits(**limits)).text)

    def wait_ready(self, count: int = 1) -> None:
        wait_until(
            lambda: self.client.llen(QUEUE) >= count, AT_ONCE, f"{count} messages that are ready"
        )

    def app(self) -> tuple[Celery, DelayQ]:
        app = Celery("jumps", broker=self.url, set_as_current=False)
        delayq = self._stack.enter_context(closing(DelayQ(app)))
        app.task(name="note", shared=False)(lambda: None)
        return app, delayq


# -- the cells: what is stored, the jump, what goes on


def paced(world: World) -> Iterator[None]:
    world.limit(promote_rate=50)
    world.store.overdue(*(f"e{n:02}" for n in range(60)))
    world.dispatch()
    world.wait_ready()
    before = world.client.llen(QUEUE)
    began = time.monotonic()
    yield
    world.wait_ready(60)
    taken = time.monotonic() - began
    assert (60 - before - 50 / 10 - 1) / 50 <= taken, "faster than the limit allows"


def full(world: World) -> Iterator[None]:
    world.limit(max_ready=10)
    world.store.overdue(*(f"e{n:02}" for n in range(20)))
    world.dispatch()
    world.wait_ready(10)
    yield
    world.client.ltrim(QUEUE, 1, 0)
    world.wait_ready(10)


def deferred(world: World) -> Iterator[None]:
    world.store.overdue("e")
    world.client.set(QUEUE, "no list")
    world.dispatch()
    wait_until(
        lambda: (world.client.zscore("delayq:next_due", QUEUE) or 0) > 1, AT_ONCE, "it is deferred"
    )
    yield
    world.client.delete(QUEUE)
    world.wait_ready()


def due(world: World) -> Iterator[None]:
    """Who is on duty is gone; what comes due then is promoted in time."""
    world.store.put(labelled("later", 600_000, relative=True))
    world.client.hset("delayq:clock", mapping={"duty": "gone", "duty_at": world.store.now_ms()})
    world.dispatch()
    yield
    forward = world.jump > 0  # the first one is due by now
    world.wait_ready(int(forward))
    world.store.put(labelled("soon", 300, relative=True))
    [moment] = [
        int(each.split(b"\0")[1])
        for each in world.client.zrange("{q}:tasks", 0, -1)
        if each.endswith(b"\0soon")
    ]
    world.wait_ready(1 + forward)
    assert world.store.now_ms() >= moment, "early"
    assert world.store.scheduled(QUEUE) == (0 if forward else 1)


def lease(world: World) -> Iterator[None]:
    world.store.next_queue(1.0)
    world.store.push(b"{}")
    began = time.monotonic()
    world.store.leases.acquire(QUEUE, "gone", LEASE, "1", 1)
    world.dispatch()
    yield
    world.wait_ready()
    assert time.monotonic() - began >= LEASE - 0.1, "the lease has ended early"


def ready_lists(world: World) -> Iterator[None]:
    """A stock producer leaves no sign, and the sign of another one may have expired."""
    world.store.register(QUEUE)
    world.dispatch()
    wait_until(
        lambda: world.client.hexists("delayq:clock", "ready_looked"), AT_ONCE, "ready lists seen"
    )
    yield
    world.client.lpush(QUEUE, "{}")
    wait_until(lambda: world.client.exists("{q}:wake"), AT_ONCE, "a sign")


def dispatched(world: World) -> Iterator[None]:
    world.dispatch()
    wait_until(lambda: world.client.hexists("delayq:clock", "dispatched"), AT_ONCE, "a look")
    yield
    wait_until(
        lambda: (
            abs(int(world.client.hget("delayq:clock", "dispatched") or 0) - world.store.now_ms())
            < AT_ONCE * 1000
        ),
        AT_ONCE,
        "the time of the last look is right",
    )


def periodic(world: World) -> Iterator[None]:
    """An interval goes on, also where a runner has died that had claimed its entry."""
    app, delayq = world.app()
    delayq.periodic.add("often", 0.5, "note")

    def start() -> Callable[[], None]:
        runner = PeriodicRunner(app, deploy=False)
        runner.start()
        return runner.stop

    def count() -> int:
        entry = delayq.periodic.get("often")
        assert entry is not None
        return entry.total_run_count

    world.run(start)
    wait_until(lambda: count() >= 1, AT_ONCE, "it ticks")
    now = world.store.now_ms()
    world.client.zadd("delayq:periodic_at", {"often": now + 400})
    before = count()
    yield
    wait_until(lambda: count() >= before + 8, AT_ONCE, "it ticks on")


def missed_tick(world: World) -> Iterator[None]:
    """Nobody dispatched in the hour ahead; where the clock is set back, the tick is to come."""
    tick = labelled("tick", 2_000, relative=True)
    world.store.put(with_skip_after(tick, 1_000))
    yield
    world.dispatch()
    left = 0 if world.jump > 0 else 1
    wait_until(lambda: world.store.scheduled(QUEUE) == left, AT_ONCE, "a look at the tick")
    assert world.client.llen(QUEUE) == world.store.dead_letters.count(QUEUE) == 0


def code_versions(world: World) -> Iterator[None]:
    gate = world.store.periodic
    assert gate.announce_version("code", "old", None, 60_000).version == "old"
    yield
    assert gate.announce_version("code", "old", None, 60_000).version == "old"
    assert gate.announce_version("code", "new", None, 60_000).version == "new"
    assert gate.announce_version("code", "old", None, 60_000).version == "new"


def revoked(world: World) -> Iterator[None]:
    controls, control = Controls(), world.store.control
    control.revoke(3 * HOUR, ["jump-before"])
    controls.learn(world.store, for_worker=True, expires=3 * HOUR)
    yield
    control.revoke(3 * HOUR, ["jump-after"])
    controls.learn(world.store, for_worker=True, expires=3 * HOUR)
    fresh = {*control.revoked().ids}
    assert fresh == {"jump-before", "jump-after"}
    assert "jump-after" in worker_state.revoked, "a consumer that runs has not learnt of it"


def unique_key(world: World) -> Iterator[None]:
    """What is put off by each call runs ``max_wait`` after the first one at the latest."""

    first, second = (
        labelled(id, 60_000, relative=True, unique="skey", policy="l 2000 0") for id in "ab"
    )
    world.store.put(first)
    yield
    world.store.put(second)
    assert (world.client.zscore("{q}:due", "b") or 0) <= world.store.now_ms() + 2000


def quarantine_turn(world: World) -> Iterator[None]:
    """The process that makes itself free for a message has died; another one may then."""
    world.store.quarantine(b"{}")
    assert turn(world, "gone", 1)
    yield
    numbers = iter(range(1, 1000))
    wait_until(lambda: turn(world, "busy", next(numbers)), AT_ONCE, "another one has the turn")


def turn(world: World, who: str, number: int) -> bool:
    """Return whether a process that holds something makes room for a quarantined message."""
    call = world.store.leases.acquire_call(QUEUE, who, LEASE, str(number), 1, 4, 1)
    return AcquireReply.read(world.store.run(call)).must_make_room


def archiving(world: World) -> Iterator[None]:
    take = world.store.dead_letters.take_turn
    assert take("gone", LEASE)
    assert not take("other", LEASE)
    yield
    wait_until(lambda: take("other", LEASE), AT_ONCE, "another worker has the turn")


def celery_beats(world: World) -> Iterator[None]:
    """A beat that has ended counts as running for a minute at most."""
    app, _ = world.app()
    now = world.store.now_ms()
    world.client.zadd(
        "delayq:celery_beats", {"ended": now + int(beat_guard.BEAT_ALIVE_SECONDS * 1000)}
    )
    assert beat_guard.running(world.store, app) == ["ended"]
    yield
    assert beat_guard.running(world.store, app) == []


def dead_letter(world: World) -> Iterator[None]:
    """Redis' clock decides on the age; what dies then is listed too."""
    world.store.dead_letters.add(QUEUE, "before", "why", b"{}")
    yield
    world.store.dead_letters.add(QUEUE, "after", "why", b"{}")
    assert {each.id for each in world.store.dead_letters.all(QUEUE)} == {"before", "after"}
    world.store.dead_letters.trim_by(QUEUE, Layout(limits=Limits(dead_letters_age=600)))
    kept = {"after"} if world.jump > 0 else {"before", "after"}
    assert {each.id for each in world.store.dead_letters.all(QUEUE)} == kept


def skip_after(world: World) -> Iterator[None]:
    """Redis' clock decides what is too late; what is held meanwhile comes back in any case."""
    waits, runs = (labelled(each, skip_after=600_000) for each in ("waits", "runs"))
    world.store.make_ready(runs, due_ms=world.store.now_ms())
    [(field, *_)] = world.store.acquire().messages
    world.store.make_ready(waits, due_ms=world.store.now_ms())
    yield
    world.store.requeue(field)
    back = {message_of(runs)} if world.jump > 0 else {message_of(runs), message_of(waits)}
    assert {*bodies(world.store.acquire("2"))} == back
    assert world.store.dead_letters.count(QUEUE) == (1 if world.jump > 0 else 0)


def paused_task(world: World) -> Iterator[None]:
    """What is paused and due, and what a consumer put off for that, runs when its task goes on."""
    app, delayq = world.app()
    delayq.pause(task="note")
    app.send_task("note", countdown=0.01)
    app.send_task("note")
    with app.connection_for_read() as connection, app.amqp.TaskConsumer(connection.channel()):

        def wait_put_off(number: int) -> None:
            def is_put_off() -> bool:
                with suppress(TimeoutError, OSError):
                    connection.drain_events(timeout=0.1)
                return bool(world.client.zcard("{celery}:paused_due") == number)

            wait_until(is_put_off, AT_ONCE, f"{number} tasks are put off")

        wait_put_off(2)
        yield
        app.send_task("note")
        wait_put_off(3)
    delayq.resume(task="note")
    world.dispatch()
    wait_until(lambda: world.client.llen("celery") == 3, AT_ONCE, "all are ready")


def lanes(world: World) -> Iterator[None]:
    """A lane waits for the interval of its limit, and a lane that may go goes at once."""
    world.store.define_limit(interval_us=1_500_000)
    world.store.define_limit("turns", fair=True)
    for id in ("a1", "a2"):
        world.store.put(labelled(id, 0, lane="api:"))
    assert len(world.store.acquire("1").messages) == 1
    world.store.put(labelled("b", 0, lane="turns:"))
    numbers = iter(range(2, 10_000))
    began = time.monotonic()
    world.dispatch()
    yield
    waited: dict[str, float] = {}

    def both() -> bool:
        for message in bodies(world.store.acquire(str(next(numbers)))):
            waited[message.split(b'"label": "')[1].split(b" ")[0].decode()] = time.monotonic()
        return len(waited) == 2

    wait_until(both, AT_ONCE, "both lanes go")
    if world.jump < 0:
        assert waited["a2"] - began >= 1.4, "faster than the limit allows"


def history(world: World) -> Iterator[None]:
    """A reader goes on behind the last run that it knows."""
    runs = world.store.history
    runs.add("me", 1, 100, [b"before"])
    last = runs.newest_offset()
    assert last is not None
    yield
    runs.add("me", 2, 100, [b"after"])
    assert [run for _, run in runs.read(last, "+", 10)] == [b"after"]


CELLS: dict[str, Cell] = {
    cell.__name__: cell
    for cell in (
        *(paced, full, deferred, due, lease, ready_lists, dispatched, periodic, code_versions),
        *(
            missed_tick,
            revoked,
            unique_key,
            quarantine_turn,
            archiving,
            celery_beats,
            dead_letter,
            skip_after,
        ),
        *(paused_task, lanes, history),
    )
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedRedis, ServerClock]]:
    clock = ServerClock(tmp_path_factory.mktemp("clock"))
    with EmbeddedRedis(executable=clock.program) as started:
        yield started, clock


@pytest.fixture
def world(server: tuple[EmbeddedRedis, ServerClock]) -> Iterator[World]:
    started, clock = server
    with ExitStack() as stack:
        world = World(started, clock, stack)
        world.set(0, changes=False)
        world.client.flushall()
        world.store.next_queue()
        yield world
        world.end()


def test_each_stored_time_has_its_cells() -> None:
    assert {cell for cells in JUDGED.values() for cell in cells.split()} == CELLS.keys()


@pytest.mark.parametrize(
    ("jump", "changes"),
    [
        pytest.param(-HOUR, True, id="back-another"),
        pytest.param(HOUR, True, id="forward-another", marks=pytest.mark.full),
        pytest.param(-HOUR, False, id="back-same", marks=pytest.mark.full),
        pytest.param(HOUR, False, id="forward-same", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("cell", CELLS)
def test_what_was_stored_before_the_jump_goes_on(
    world: World, cell: str, jump: int, changes: bool
) -> None:
    steps = CELLS[cell](world)
    next(steps)
    world.set(jump, changes=changes)
    with pytest.raises(StopIteration):
        next(steps)
