"""What each call says to arguments that its task does not take, or that cannot be encoded.

One table for all calls: each bad call is refused by all of them, and changes nothing.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from celery import Celery, Task
from celery.schedules import schedule
from redis import Redis

from celery_delayq import DelayQ
from celery_delayq.periodic.definition import Definition
from celery_delayq.periodic.importers import FoundEntry, take_over
from celery_delayq.schedule.items import Item
from tests.support.cli import CommandLine
from tests.support.dead_letters import message, stored
from tests.support.keyspace import snapshot


def strict(key: str, *, text: str = "") -> None:
    """Stand for a task."""


def bound(self: Any, key: str, *, text: str = "") -> None:
    """Stand for a task with ``bind=True``."""


@functools.wraps(strict)
def decorated(*args: Any, **kwargs: Any) -> None:
    """Stand for a task whose decorator keeps the signature."""


def hidden(*args: Any, **kwargs: Any) -> None:
    """Stand for a task that takes any arguments."""


def of_tenant(key: str, *, tenant: str, text: str = "") -> None:
    """Stand for a task whose base class adds an argument to each call."""


class OfTenant(Task):
    """Adds the tenant to each call."""

    def apply_async(self, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        """Send a call with the tenant."""
        return super().apply_async(args, {**(kwargs or {}), "tenant": "t1"}, *rest, **options)


class Refused(Exception):
    """A call has refused the arguments, with this text."""


class Scene(NamedTuple):
    """An app, its Redis, and the name of the task."""

    app: Celery
    delayq: DelayQ
    task: str
    folder: Path

    def cli(self, *line: str) -> None:
        """Run a command; an exit code of 2 is a refusal."""
        ran = CommandLine(self.app)(*line)
        if ran.code == 2:
            raise Refused(ran.err)
        assert ran.code == 0, ran


def send(scene: Scene, args: Any, kwargs: Any) -> None:
    task = scene.app.tasks.get(scene.task)
    options = {"countdown": 3600, "task_id": "a"}
    if task is None:
        scene.app.send_task(scene.task, args, kwargs, **options)
    else:
        task.apply_async(args, kwargs, **options)


def schedule_many(scene: Scene, args: Any, kwargs: Any) -> None:
    items = [Item(args, kwargs, countdown=3600, task=scene.task)]
    for refusal in scene.delayq.schedule_many(items).refusals:
        assert refusal.error is not None
        raise refusal.error


def update(scene: Scene, args: Any, kwargs: Any) -> None:
    assert scene.delayq.update("a", args=args, kwargs=kwargs)


def replay(scene: Scene, args: Any, kwargs: Any) -> None:
    assert scene.delayq.replay("dead", args=args, kwargs=kwargs)


def rewrite(scene: Scene, args: Any, kwargs: Any) -> None:
    """Of the schedule, of dead letters and of periodic entries: all of them or none."""
    report = scene.delayq.rewrite(lambda _: {"args": list(args), "kwargs": kwargs}, task=scene.task)
    assert report.failed in (0, 3), report
    for failure in report.failures:
        raise Refused(failure.problem)


def add_entry(scene: Scene, args: Any, kwargs: Any) -> None:
    scene.delayq.periodic.add("new", 3600, scene.task, args, kwargs)


def update_entry(scene: Scene, args: Any, kwargs: Any) -> None:
    scene.delayq.periodic.update("entry", args=args, kwargs=kwargs)


def update_task_of_entry(scene: Scene, args: Any, kwargs: Any) -> None:
    """The entry has the arguments already, and gets the task."""
    scene.delayq.periodic.update("other", args=args, kwargs=kwargs)
    try:
        scene.delayq.periodic.update("other", task=scene.task)
    finally:
        scene.delayq.periodic.update("other", task="other", args=(), kwargs={})


def import_entry(scene: Scene, args: Any, kwargs: Any) -> None:
    definition = Definition(
        name="new", task=scene.task, schedule=schedule(3600), args=args, kwargs=kwargs
    )
    found = [FoundEntry(name="new", definition=definition)]
    [(entry, result)] = take_over(scene.delayq.session, found)
    if result == "refused":
        raise Refused(entry.problem)


def in_words(args: Any, kwargs: Any) -> tuple[str, ...]:
    return "--args", json.dumps([*args]), "--kwargs", json.dumps(kwargs)


def update_command(scene: Scene, args: Any, kwargs: Any) -> None:
    scene.cli("update", "a", *in_words(args, kwargs))


def add_command(scene: Scene, args: Any, kwargs: Any) -> None:
    scene.cli("periodic", "add", "new", scene.task, "--every", "1h", *in_words(args, kwargs))


def update_entry_command(scene: Scene, args: Any, kwargs: Any) -> None:
    scene.cli("periodic", "update", "entry", *in_words(args, kwargs))


def replay_command(scene: Scene, args: Any, kwargs: Any) -> None:
    scene.cli("dead", "replay", "dead", *in_words(args, kwargs))


Call = Callable[[Scene, Any, Any], None]

CALLS: tuple[Call, ...] = (
    *(send, schedule_many, update, replay, rewrite),
    *(add_entry, update_entry, update_task_of_entry, import_entry),
)
#: An import takes them with a note.
CHECKING_CALLS = tuple(call for call in CALLS if call is not import_entry)
#: Commands: arguments that are no JSON cannot be given.
COMMANDS: tuple[Call, ...] = (update_command, add_command, update_entry_command, replay_command)

#: Arguments that a task with a signature does not take, and the reason.
MISFITS: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "missing": ((), {}, "missing"),
    "too many": (("a", "b", "c"), {}, "too many|takes .* positional"),
    "unknown name": (("a",), {"txt": "b"}, "unexpected keyword argument 'txt'"),
    "twice": (("a",), {"key": "b"}, "multiple values"),
}


@pytest.fixture
def scene(app: Celery, delayq: DelayQ, tmp_path: Path) -> Scene:
    """A scheduled task, a dead letter and two periodic entries, of tasks that this app has not."""
    for name, function in {"strict": strict, "decorated": decorated, "hidden": hidden}.items():
        app.task(name=name, shared=False)(function)
    app.task(name="bound", bind=True, shared=False)(bound)
    app.task(name="untyped", typing=False, shared=False)(strict)
    app.task(name="other", shared=False)(hidden)
    app.task(name="tenant", base=OfTenant, shared=False)(of_tenant)
    return Scene(app, delayq, "", tmp_path)


def filled(scene: Scene, task: str) -> Scene:
    """Store a call of a task in each place."""
    scene.app.send_task(task, ("old",), countdown=3600, task_id="a")
    died = scene.delayq.store.now_ms()
    data = stored(died, "failed", message("dead", task))
    scene.delayq.store.dead_letters.restore("celery", [("dead", died, data)])
    scene.delayq.periodic.add("entry", 3600, task, ("old",))
    scene.delayq.periodic.add("other", 3600, "other")
    return scene._replace(task=task)


def verdict(call: Call, scene: Scene, args: Any, kwargs: Any) -> str:
    """Return the text of a refusal, "" if the call was accepted."""
    try:
        call(scene, args, kwargs)
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"
    return ""


@pytest.mark.parametrize(
    ("call", "task"),
    [
        *itertools.product((*CHECKING_CALLS, *COMMANDS), ("strict", "bound")),
        # Celery's own check of a publish looks at the outermost function only. The decorator may
        # add what is missing.
        *itertools.product((*CHECKING_CALLS[2:], *COMMANDS), ("decorated",)),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_arguments_that_do_not_fit_are_refused_by_every_call(
    scene: Scene, redis: Redis, call: Call, task: str
) -> None:
    scene = filled(scene, task)
    before = snapshot(redis)

    for kind, (args, kwargs, reason) in MISFITS.items():
        if (task, kind) == ("decorated", "missing"):
            continue
        refusal = verdict(call, scene, args, kwargs)
        assert re.search(reason, " ".join(refusal.split())), (kind, refusal)

    if call is not update_task_of_entry:
        assert snapshot(redis) == before


@pytest.mark.parametrize("task", ["untyped", "hidden", "unknown"])
@pytest.mark.parametrize("call", [*CALLS, *COMMANDS], ids=lambda call: call.__name__)
def test_where_nobody_can_tell_every_call_accepts_them(
    scene: Scene, redis: Redis, call: Call, task: str
) -> None:
    for kind, (args, kwargs, _) in MISFITS.items():
        redis.flushdb()
        assert verdict(call, filled(scene, task), args, kwargs) == "", kind


#: Calls that change a message, which has all arguments: nobody adds one later.
CHANGING_CALLS: tuple[Call, ...] = (update, replay, update_command, replay_command)
#: Calls after which ``apply_async`` of the task makes the message.
SENDING_CALLS: tuple[Call, ...] = (
    *(send, schedule_many, add_entry, update_entry, update_task_of_entry, import_entry),
    *(add_command, update_entry_command),
)


@pytest.mark.parametrize("call", CHANGING_CALLS, ids=lambda call: call.__name__)
def test_a_message_lacks_what_the_tasks_own_apply_async_adds(scene: Scene, call: Call) -> None:
    assert "argument: 'tenant'" in verdict(call, filled(scene, "tenant"), ("a",), {})
    assert verdict(call, scene._replace(task="tenant"), ("a",), {"tenant": "t2"}) == ""


@pytest.mark.parametrize("call", SENDING_CALLS, ids=lambda call: call.__name__)
def test_a_call_needs_nothing_that_the_tasks_own_apply_async_adds(
    scene: Scene, redis: Redis, call: Call
) -> None:
    assert verdict(call, filled(scene, "tenant"), ("a",), {}) == ""

    names = {entry.name for entry in scene.delayq.periodic.list()} - {"other"}
    assert all(scene.delayq.periodic.run_now(name) for name in names)
    messages = [json.loads(data) for data in redis.lrange("celery", 0, -1)]
    assert [each["headers"]["kwargsrepr"] for each in messages] == ["{'tenant': 't1'}"] * len(names)


@pytest.mark.parametrize("kind", MISFITS)
@pytest.mark.parametrize("is_in_code", [False, True])
def test_an_entry_is_imported_with_its_state_and_a_note(
    scene: Scene, kind: str, is_in_code: bool
) -> None:
    """Workers write an entry of the code anyway, and a backup is restored as it was."""
    args, kwargs, reason = MISFITS[kind]
    when = schedule(3600)
    definition = Definition(name="new", task="strict", schedule=when, args=args, kwargs=kwargs)
    if is_in_code:
        in_code = {"task": "strict", "schedule": 3600.0, "args": args, "kwargs": kwargs}
        scene.app.conf.beat_schedule = {"new": in_code}
    found = FoundEntry(name="new", definition=definition, total_run_count=7, enabled=False)

    [(taken, result)] = take_over(scene.delayq.session, [found])

    assert (result, taken.problem) == ("added", None)
    assert re.search(f"^its ticks will fail: strict: .*({reason})", taken.note or "", re.DOTALL)
    [entry] = scene.delayq.periodic.list()
    assert (entry.status, entry.total_run_count) == ("paused", 7)


def test_a_backup_of_entries_is_restored_as_it_was(scene: Scene, redis: Redis) -> None:
    scene.delayq.periodic.add("old", 3600, "later", ("a", "b"))
    before, cli = scene.delayq.periodic.list(), CommandLine(scene.app)
    file = scene.folder / "periodic.jsonl"
    file.write_text(cli("periodic", "list", "--json").out)
    redis.flushdb()
    scene.app.task(name="later", shared=False)(strict)

    ran = cli("periodic", "import", "--from", "list", str(file))

    assert (ran.code, scene.delayq.periodic.list()) == (0, before)
    assert "added  old  every 1h  its ticks will fail: later: args=('a', 'b')" in ran.out


@pytest.mark.parametrize("task", ["strict", "untyped", "unknown"])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_arguments_that_cannot_be_encoded_are_refused_by_every_call(
    scene: Scene, redis: Redis, call: Call, task: str
) -> None:
    scene = filled(scene, task)
    before = snapshot(redis)

    assert verdict(call, scene, (object(),), {})
    assert verdict(call, scene, ("a",), {"text": object()})

    assert snapshot(redis) == before


@pytest.mark.parametrize("call", [*CALLS, *COMMANDS], ids=lambda call: call.__name__)
def test_arguments_that_fit_are_accepted_by_every_call(scene: Scene, call: Call) -> None:
    assert verdict(call, filled(scene, "strict"), ("a",), {"text": "b"}) == ""


def test_an_entry_whose_task_has_changed_can_still_be_moved(scene: Scene) -> None:
    scene.delayq.periodic.add("old", 60, "later", ("a", "b"))
    scene.app.task(name="later", shared=False)(strict)

    assert scene.delayq.periodic.update("old", schedule=30, options={"queue": "slow"}).next


def test_a_file_is_restored_as_it_is_and_compat_tells(scene: Scene, redis: Redis) -> None:
    """A backup is that of another version of the code, too."""
    scene.app.send_task("later", ("a", "b"), countdown=3600)
    file = scene.folder / "schedule.jsonl"
    scene.delayq.export_to(file)
    redis.flushdb()
    scene.app.task(name="later", shared=False)(strict)

    assert scene.delayq.import_from(file).outcomes == {"scheduled": 1}

    report = scene.delayq.compat()
    assert report.fails == 1
