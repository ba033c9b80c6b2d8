"""Two people change the same, and one comes between any two calls of the other to Redis.

A table of all pairs of changes: what both learn and what is stored then is as if one of them had
begun after the other had ended. So nobody overwrites what somebody else has changed since the form
was shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import count, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from redis.connection import AbstractConnection

from celery_delayq import Outcome
from celery_delayq.errors import DelayQError
from celery_delayq.model.changes.calls import WaitingCall
from celery_delayq.testing.fixtures import RedisUnderTest
from celery_delayq.web import changes
from celery_delayq.web.actions import ACTIONS
from celery_delayq.web.query import NotFound, Query
from celery_delayq.web.questions import ask, job_of
from celery_delayq.web.site import Site
from tests.integration.conftest import MakeApp
from tests.integration.web.conftest import Scene, prepare, scene_of
from tests.integration.web.test_changes import DONE, marks

#: Most calls of a change to Redis.
MOST_CALLS = 200

#: The filter of changes of all, so that they concern the task that others choose.
ALL_OF = {"all tasks": {"task": "shop.mail"}, "all dead letters": {"queue": "celery"}}

#: The second one is a program that calls our API.
PROGRAM = "a program"

#: What the second person writes where the first one writes something else.
OTHERWISE = {
    "move": {"when": "2101-01-01"},
    "edit": {"args": '["eve", 19]'},
    "edit_entry": {"schedule": "every 2h"},
    "set_limit": {"limit_rate": "7/m"},
}

#: Changes that write the same each time. So it is no conflict if both learn that it is done.
SAME = ("end_limit", "unset_limit")

#: Changes whose forms have a version besides the due time or the time of death.
WITH_VERSION = ("edit", "replay", "edit_entry", "set_limit", "end_limit", "unset_limit")


def about(name: str) -> str:
    """Return what a change is about."""
    return ACTIONS[name].kind.removeprefix("all ")


def tier(first: str, second: str) -> Sequence[pytest.MarkDecorator]:
    """Return the marks of a pair of changes."""
    return () if first == second in WITH_VERSION else [pytest.mark.nightly]


#: A change of all is one of each: two of them may share the tasks between them.
PAIRS = [
    pytest.param(*pair, marks=tier(*pair))
    for pair in product(ACTIONS, ACTIONS)
    if about(pair[0]) == about(pair[1]) and not all(ACTIONS[n].kind in ALL_OF for n in pair)
]

#: A change with a form, and a call of a program.
PAIRS += [pytest.param(name, PROGRAM, marks=pytest.mark.full) for name in WITH_VERSION]


class Ending(NamedTuple):
    """Whether each of the two has changed something, and what is stored."""

    done: tuple[bool, bool]
    stored: Mapping[str, Any]


class Person:
    """Has the form of a change, with the version that it had when it was shown."""

    def __init__(self, site: Site, scene: Scene, name: str, others: Mapping[str, str]) -> None:
        fields = {**DONE[name][0], **ALL_OF.get(ACTIONS[name].kind, {}), **others}
        named = marks(scene)
        form = {"action": [name], **{n: [named.get(v, v)] for n, v in fields.items()}}
        version = ask(site, Query("", form)).version
        self._site = site
        self._form = Query("", {**form, "version": [version], "confirmed": ["yes"]})
        #: Whether the page said that something was left as it is.
        self.knows_of_change = False

    def makes(self) -> bool:
        """Make the change; return whether something was changed."""
        try:
            question = ask(self._site, self._form)
            job = job_of(question, "ops")
            changes.prepare(self._site, self._form, question)(job)
        except (DelayQError, NotFound):
            return False
        self.knows_of_change = Outcome.CHANGED in job.unchanged
        return job.done > 0


def rewrites(scene: Scene) -> bool:
    """Give the waiting task and the dead letter other arguments."""
    ids = (scene.waiting, scene.dead)

    def changes(call: WaitingCall) -> dict[str, Any] | None:
        return {"args": ["eve", 19]} if call.id in ids else None

    return scene.delayq.rewrite(changes).done > 0


#: What others change without a page, by what a form is about.
OUTSIDE: Mapping[str, Callable[[Scene], object]] = {
    "tasks": rewrites,
    "dead letters": rewrites,
    "entry": lambda scene: scene.delayq.periodic.update("digest", args=("eve",)),
    "limit": lambda scene: scene.delayq.limits.set("stripe", rate="7/m"),
}


class Program(NamedTuple):
    """Changes what a form is about by a call."""

    scene: Scene
    change: Callable[[Scene], object]

    def makes(self) -> bool:
        return bool(self.change(self.scene))


@contextmanager
def before_call(number: int, then: Callable[[], object]) -> Iterator[list[bool]]:
    """Call *then* once, before this process sends something to Redis for the n-th time.

    Yields a list that is empty until then.
    """
    calls, called = count(1), list[bool]()
    send = AbstractConnection.send_packed_command

    def sending(connection: Any, *args: Any, **options: Any) -> Any:
        if not called and next(calls) == number:
            called.append(True)
            then()
        return send(connection, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AbstractConnection, "send_packed_command", sending)
        yield called


def stored(scene: Scene) -> Mapping[str, Any]:
    """Return which changes can be seen, and how many tasks there are."""
    delayq = scene.delayq
    found: dict[str, Any] = {"tasks": delayq.count(), "dead": delayq.count_dead()}
    for name, (_, look, expected) in DONE.items():
        try:
            found[name] = look(scene) == expected
        except AttributeError:  # it has gone
            found[name] = None
    return found


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_who_comes_between_comes_before_or_after(
    make_app: MakeApp, delayq_redis: RedisUnderTest, tmp_path: Path, first: str, second: str
) -> None:
    def begin(stack: ExitStack) -> tuple[Scene, Person, Person | Program]:
        delayq_redis.client.flushall()
        archive = f"sqlite:///{tmp_path}/{len([*tmp_path.iterdir()])}.db"
        app = make_app(broker_transport_options={"delayq": {"dead_letters_archive": archive}})
        scene = scene_of(app)
        prepare(scene)
        sites = [stack.enter_context(closing(Site(app))) for _ in range(2)]
        one = Person(sites[0], scene, first, {})
        if second == PROGRAM:
            return scene, one, Program(scene, OUTSIDE[about(first)])
        return scene, one, Person(sites[1], scene, second, OTHERWISE.get(second, {}))

    def in_turn(is_reversed: bool) -> Ending:
        with ExitStack() as stack:
            scene, *people = begin(stack)
            order = people[::-1] if is_reversed else people
            one, other = (each.makes() for each in order)
            return Ending((other, one) if is_reversed else (one, other), stored(scene))

    def between(number: int) -> tuple[Ending, bool] | None:
        with ExitStack() as stack:
            scene, one, other = begin(stack)
            others = list[bool]()
            with before_call(number, lambda: others.append(other.makes())) as called:
                done = one.makes()
            return (
                (Ending((done, others[0]), stored(scene)), one.knows_of_change) if called else None
            )

    expected = [in_turn(False), in_turn(True)]
    if first == second in SAME:
        expected.append(expected[0]._replace(done=(True, True)))
    number = 0
    while (found := between(number + 1)) is not None:
        number += 1
        ending, knows_of_change = found
        # A change of all leaves a task to the one who has changed it meanwhile, and says so.
        is_left = ACTIONS[first].kind in ALL_OF and knows_of_change and ending.done == (True, True)
        assert ending in expected or is_left, number
        assert number < MOST_CALLS

    assert number > 0
