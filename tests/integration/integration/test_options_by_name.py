"""A task that is sent by its name has its options, whether or not the app is finalized."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, Task, chain, chord, group, shared_task, signature
from celery._state import _on_app_finalizers

import celery_delayq
from celery_delayq import DelayQ, Limit
from celery_delayq.aio import AsyncDelayQ
from celery_delayq.schedule.items import Item
from celery_delayq.utils.once import warn_once
from tests.integration.conftest import MakeApp

NAME = "shop.remind"
KEY = f"{NAME}:order%3A17"
OPTIONS: dict[str, Any] = {
    "name": NAME,
    "unique_key": "order:{order_id}",
    "on_conflict": "keep",
    "limit": Limit("shop", rate=1, key="{order_id}"),
}


def remind(order_id: int) -> None:
    """Stand for any task."""


@pytest.fixture(autouse=True)
def _shared_tasks_of_others() -> Iterator[None]:
    """Other tests get none of the tasks that are shared here."""
    before = {*_on_app_finalizers}
    yield
    _on_app_finalizers.clear()
    _on_app_finalizers.update(before)


# -- how an app comes to a task


def decorated(app: Celery) -> None:
    app.task(**OPTIONS, shared=False)(remind)


def shared(app: Celery) -> None:
    shared_task(**OPTIONS)(remind)


def of_another_app(app: Celery) -> None:
    Celery("another", set_as_current=False).task(**OPTIONS)(remind)


def registered(app: Celery) -> None:
    body = {**OPTIONS, "run": staticmethod(remind)}
    app.register_task(type("Remind", (app.Task,), body)())


def evaluated(app: Celery) -> None:
    assert app.task(**OPTIONS, shared=False)(remind).name == NAME


def late(app: Celery) -> None:
    app.finalize()
    decorated(app)


STATES: dict[str, Callable[[Celery], None]] = {
    each.__name__: each
    for each in (*(decorated, shared, of_another_app, registered, evaluated, late),)
}

# -- how it is sent


def send_task(app: Celery) -> None:
    app.send_task(NAME, (17,), countdown=60)


def send_task_by_keyword(app: Celery) -> None:
    app.send_task(name=NAME, kwargs={"order_id": 17}, countdown=60)


def named(app: Celery) -> Any:
    """Return the signature of the task by its name."""
    return signature(NAME, (17,), immutable=True, app=app).set(countdown=60)


def by_signature(app: Celery) -> None:
    named(app).apply_async()


def in_chain(app: Celery) -> None:
    chain(named(app), named(app), app=app).apply_async()


def in_group(app: Celery) -> None:
    group([named(app), named(app)], app=app).apply_async()


def in_chord(app: Celery) -> None:
    chord([named(app), named(app)], named(app), app=app).apply_async()


def schedule_many(app: Celery) -> None:
    DelayQ.of(app).schedule_many([Item((17,), countdown=60, task=NAME)])


def schedule_many_signatures(app: Celery) -> None:
    DelayQ.of(app).schedule_many([named(app)])


def on_a_loop(app: Celery) -> None:
    async def send() -> None:
        async with AsyncDelayQ(app) as client:
            await client.apply_async(NAME, (17,), countdown=60)

    asyncio.run(send())


WAYS: dict[str, Callable[[Celery], None]] = {
    each.__name__: each
    for each in (
        *(send_task, send_task_by_keyword, by_signature, in_chain, in_group, in_chord),
        *(schedule_many, schedule_many_signatures, on_a_loop),
    )
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("state", STATES)
def test_the_task_has_its_options(state: str, way: str, make_app: MakeApp) -> None:
    app = make_app()
    STATES[state](app)

    WAYS[way](app)
    send_task(app)

    [entry] = DelayQ.of(app).entries()
    assert entry.unique_key == KEY
    assert entry.own["limit"] == "shop:17 0"


@pytest.mark.parametrize("way", ["send_task", "send_task_by_keyword"])
def test_to_send_a_task_does_not_finalize_the_app(way: str, make_app: MakeApp) -> None:
    """Else it calls no handler of ``on_after_finalize`` that is connected later."""
    app = make_app()
    decorated(app)
    WAYS[way](app)
    called: list[Celery] = []
    app.on_after_finalize.connect(lambda sender, **_: called.append(sender), weak=False)

    assert not app.finalized
    app.finalize()

    assert called == [app]
    assert app.tasks[NAME]._delayq_attempts is not None


def test_a_task_that_cannot_be_made_holds_up_no_other(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Task):
        def __init__(self) -> None:
            raise LookupError("no such shop")

    warn_once.cache_clear()
    app = make_app()
    app.task(name="shop.broken", base=Broken, shared=False)(remind)
    decorated(app)
    for _ in range(2):
        send_task(app)
    app.send_task("elsewhere.task", countdown=60)

    assert {each.unique_key for each in DelayQ.of(app).entries()} == {KEY, ""}
    assert caplog.text.count("no such shop") == 1
    with pytest.raises(LookupError):
        app.finalize()


def test_a_task_that_this_app_does_not_have_is_sent_all_the_same(make_app: MakeApp) -> None:
    app = make_app()
    app.send_task("elsewhere.task", (1,), countdown=60)

    [entry] = DelayQ.of(app).entries()
    assert entry.task == "elsewhere.task"


def test_an_app_that_may_not_finalize_itself_says_that_options_are_unknown(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    app = make_app()
    app.autofinalize = False
    decorated(app)
    for _ in range(2):
        send_task(app)

    assert caplog.text.count("Call app.finalize() first") == 1
    app.finalize()
    send_task(app)
    assert sorted(each.unique_key for each in DelayQ.of(app).entries()) == ["", "", KEY]


#: Where the package looks a task up by its name, or at all tasks, and why the app knows them then.
LOOKUPS = {
    "aio/binding.py": "it finalizes the app",
    "cli/complete.py": "as `celery` itself does for a command",
    "cli/search.py": "after `screen.known_tasks`, which finalizes the app",
    "integration/task_messages.py": "after `send_task.register`, or of a task",
    "integration/app_warnings.py": "in a worker",
    "integration/former_names.py": "it hands former names to the registry, and looks no task up",
    "integration/install.py": "after `on_after_finalize` or in a worker",
    "integration/not_run.py": "it finalizes the app for a task that is not known yet",
    "integration/send_task.py": "`register` itself; `imported_tasks` finalizes the app",
    "integration/worker.py": "in a worker",
    "schedule/items.py": "it finalizes the app",
    "schedule/pages.py": "it finalizes the app",
    "spark/write/writer.py": "it imports all modules, and finalizes the app",
    "testing/travel/app_on_server.py": "it finalizes the app",
    "web/pages/dead.py": "it suggests names alone, and finalizes the app",
    "web/pages/overview.py": "it colours names alone, and finalizes the app",
    "web/pages/scheduled.py": "it suggests names alone, and finalizes the app",
    "webhook/__init__.py": "when an app is finalized",
}


def test_each_lookup_of_a_task_is_known() -> None:
    package = Path(celery_delayq.__file__).parent
    lookup = re.compile(
        r"\b(?:app|sender|_app\(ctx\))\._?tasks\b|\b_pending\b(?!-)|app\.finalize\("
    )
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if lookup.search(path.read_text("utf-8"))
    }

    assert found - LOOKUPS.keys() - OTHERS == set()
    assert LOOKUPS.keys() <= found


#: Files that finalize an app after they have imported its modules, and look no task up.
OTHERS = {"cli/commands/services/dispatch.py", "periodic/importers/__init__.py"}
