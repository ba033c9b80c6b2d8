"""Each call that takes a filter takes its fields by name too, and says what to write otherwise."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from celery import Celery

from celery_delayq import DeadFilter, DelayQ, Filter
from celery_delayq.aio import AsyncDelayQ
from celery_delayq.deadletters.client import DeadLetters
from celery_delayq.errors import ConfigError, InvalidFilter
from celery_delayq.model.dead_letter import DeadFilterFields
from celery_delayq.model.names import Renames
from celery_delayq.model.scheduled import FilterFields
from tests.support.dead_letters import message, stored

#: The task of the filters, and its former name.
WANTED, FORMER = "shop.mail", "shop.post"


class Case(NamedTuple):
    """Arguments of a call beside the filter, and how many items its result is about."""

    number: Callable[[Any], int]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}
    kind: Any = Filter


def with_header(_: Any) -> dict[str, Any]:
    """Change each call of a message."""
    return {"headers": {"tenant": "a"}}


def done(bulk: Any) -> int:
    return int(bulk.done)


DRY = {"dry_run": True}

#: Each call that takes a filter; ``@`` is a folder.
CALLS: dict[str, Case] = {
    "archive_dead": Case(lambda told: told.moved, ("sqlite:///@dead.db",), {}, DeadFilter),
    "cancel_all": Case(done, (), DRY),
    "count": Case(int),
    "count_dead": Case(int, (), {}, DeadFilter),
    "dead_letters": Case(len, (), {}, DeadFilter),
    "entries": Case(len),
    "export_dead": Case(lambda told: told.dead_letters, ("@out.jsonl",), {}, DeadFilter),
    "export_to": Case(lambda told: told.entries, ("@out.jsonl",)),
    "import_dead": Case(lambda told: told.outcomes["duplicate"], ("@dead.jsonl",), {}, DeadFilter),
    "import_from": Case(lambda told: told.outcomes["duplicate"], ("@entries.jsonl",)),
    "list": Case(len),
    "list_dead": Case(len, (), {}, DeadFilter),
    "purge_all": Case(done, (), DRY, DeadFilter),
    "replay_all": Case(done, (), DRY, DeadFilter),
    "reschedule_all": Case(done, (), {**DRY, "by": 60}),
    # Half of what it changes are dead letters.
    "rewrite": Case(lambda report: report.done // 2, (with_header,), DRY),
    "run_all_now": Case(done, (), DRY),
}

#: A wrong name of each kind of argument, and the name that is meant.
MISSPELLED = {"tsak": "task", "queues": "queue", "progres": "progress"}


def callee(owner: type, name: str) -> Any:
    return DeadLetters.__call__ if name == "dead_letters" else getattr(owner, name)


def test_the_table_is_complete() -> None:
    for owner in (DelayQ, AsyncDelayQ):
        takers = {"dead_letters"} | {
            name
            for name in dir(owner)
            if name[0] != "_"
            and callable(getattr(owner, name))
            and "filter" in inspect.signature(getattr(owner, name)).parameters
        }
        assert takers == {*CALLS}
    for name in CALLS:
        [*_, last] = inspect.signature(callee(DelayQ, name)).parameters.values()
        assert last.kind is last.VAR_KEYWORD, name


def test_the_fields_that_type_checkers_know_are_those_of_the_filters() -> None:
    for kind, typed in ((Filter, FilterFields), (DeadFilter, DeadFilterFields)):
        assert {each.name for each in fields(kind)} == {*typed.__annotations__}


@pytest.fixture
def filled(app: Celery, delayq: DelayQ, tmp_path: Path) -> Path:
    """Two entries and two dead letters of the wanted task, one of each under its former name, and
    one of each of another task.
    """
    for number, task in enumerate((WANTED, FORMER, "shop.bill")):
        app.send_task(task, countdown=3600, task_id=f"far-{number}", queue="mail")
        id = f"dead-{number}"
        dead = stored(1000 + number, "it failed", message(id, task))
        delayq.store.dead_letters.restore("mail", [(id, 1000 + number, dead)])
    delayq.export_to(str(tmp_path / "entries.jsonl"))
    delayq.export_dead(str(tmp_path / "dead.jsonl"))
    Renames({FORMER: WANTED}).share(app)
    return tmp_path


def given(case: Case, folder: Path) -> list[Any]:
    return [
        each.replace("@", f"{folder}/") if isinstance(each, str) else each for each in case.args
    ]


async def asked(delayq: DelayQ, name: str, *args: Any, **kwargs: Any) -> Any:
    async with AsyncDelayQ(delayq) as client:
        called = getattr(client, name)(*args, **kwargs)
        if isinstance(called, AsyncIterator):
            return [each async for each in called]
        return await called


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("way", ["sync", "asyncio"])
def test_fields_by_name_are_the_filter(filled: Path, delayq: DelayQ, name: str, way: str) -> None:
    case = CALLS[name]
    args = given(case, filled)

    def number(*more: Any, **kwargs: Any) -> int:
        if way == "asyncio":
            result = asyncio.run(asked(delayq, name, *args, *more, **case.kwargs, **kwargs))
        else:
            result = getattr(delayq, name)(*args, *more, **case.kwargs, **kwargs)
        return case.number([*result] if isinstance(result, Iterator) else result)

    if name != "archive_dead":
        assert number(task=FORMER) == 1
    assert number(task=WANTED, queue="mail") == 2
    if name != "archive_dead":  # has moved them
        assert number(case.kind(task=WANTED)) == number(filter=case.kind(task=WANTED)) == 2
        assert number() == number(None) == 3
    assert number(task="shop.none") == 0


@pytest.mark.parametrize("name", CALLS)
def test_errors_say_what_to_write(filled: Path, delayq: DelayQ, name: str) -> None:
    case = CALLS[name]
    args, call = given(case, filled), getattr(delayq, name)
    options = inspect.signature(callee(DelayQ, name)).parameters

    for wrong, meant in MISSPELLED.items():
        if meant in (*options, "task", "queue"):
            with pytest.raises(
                TypeError, match=f"^unknown argument {wrong}='x'; did you mean {meant}"
            ):
                call(*args, **case.kwargs, **{wrong: "x"})
    example = rf"expected a {case.kind.__name__}\(…\), or its fields by name, such as task="
    for wrong_filter in (WANTED, {"task": WANTED}, object()):
        with pytest.raises(InvalidFilter, match=example):
            call(*args, wrong_filter, **case.kwargs)
    with pytest.raises(InvalidFilter, match=example):
        call(*args, case.kind(task=WANTED), task="shop.bill", **case.kwargs)
    with pytest.raises(InvalidFilter, match="task=''"):
        call(*args, task="", **case.kwargs)


CHANGES = [
    name for name in CALLS if "everything" in inspect.signature(callee(DelayQ, name)).parameters
]


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_everything_is_asked_for_by_name(
    filled: Path, delayq: DelayQ, name: str
) -> None:
    options = {key: value for key, value in CALLS[name].kwargs.items() if key != "dry_run"}
    call = getattr(delayq, name)

    with pytest.raises(ConfigError, match="everything=True"):
        call(**options)

    assert call(everything=True, **options).done == 3


def test_a_replay_tells_the_queue_of_dead_letters_from_the_queue_of_tasks(
    filled: Path, delayq: DelayQ
) -> None:
    assert delayq.replay_all(queue="other", dry_run=True).done == 0
    assert delayq.replay_all(queue="mail", task="shop.bill", to_queue="slow").done == 1
    assert delayq.replay_all(DeadFilter(task=WANTED), queue="slow").done == 2
    with pytest.raises(InvalidFilter, match="queue='a'"):
        delayq.replay_all(DeadFilter(task=WANTED), queue="a", to_queue="b")


# -- calls without a filter

#: It takes the keywords of ``apply_async`` too.
ANY_KEYWORDS = {"schedule_many"}


def keywords_of(name: str) -> list[str]:
    parameters = inspect.signature(getattr(DelayQ, name)).parameters.values()
    return [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]


def with_keywords() -> list[str]:
    public = {
        name
        for name in dir(DelayQ)
        if name[0] != "_" and inspect.isfunction(getattr(DelayQ, name)) and keywords_of(name)
    }
    return sorted(public - CALLS.keys() - ANY_KEYWORDS)


@pytest.mark.parametrize("way", ["sync", "asyncio"])
@pytest.mark.parametrize("name", with_keywords())
def test_an_unknown_argument_names_the_one_that_is_meant(
    delayq: DelayQ, name: str, way: str
) -> None:
    words = keywords_of(name)
    for word in words:
        wrong = {f"{word}z": "x"}
        call = partial(getattr(delayq, name), "a", **wrong)
        if way == "asyncio":
            call = partial(asyncio.run, asked(delayq, name, "a", **wrong))
        with pytest.raises(TypeError, match=f"^unknown argument {word}z='x'; did you mean {word}"):
            call()
    with pytest.raises(TypeError, match=f"^unknown argument qqq='x'; valid are: .*{words[-1]}"):
        getattr(delayq, name)("a", qqq="x")


# -- calls that do not fit

#: Positional and keyword arguments that no call takes together.
WRONG: tuple[tuple[tuple[int, ...], dict[str, int]], ...] = (
    ((), {}),
    ((), {"qqq": 1}),
    (tuple(range(12)), {}),
    ((1,), {"id": 1, "name": 1}),
)


@pytest.mark.parametrize("part", ["", "limits", "periodic"])
def test_no_error_of_a_wrong_call_names_a_class(delayq: DelayQ, part: str) -> None:
    """Of users' classes only that of the object itself may be named."""
    owner = getattr(delayq, part) if part else delayq
    refused = 0
    for name in dir(owner):
        call = getattr(owner, name)
        if name[0] == "_" or not callable(call):
            continue
        for args, kwargs in WRONG:
            try:
                inspect.signature(call).bind(*args, **kwargs)
            except TypeError:
                with pytest.raises(TypeError) as error:
                    call(*args, **kwargs)
                text = str(error.value)
                assert "." not in text.partition("(")[0] or text.startswith("DelayQ."), text
                assert re.match("unknown|argument|[0-9]+ argument|DelayQ", text), text
                refused += 1
    assert refused > 20
