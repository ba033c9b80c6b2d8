"""Whether the code of an app could run a message. The judge is a call of the task itself."""

from __future__ import annotations

import functools
import inspect
import itertools
import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from celery import Celery, Task, chain, chord, group
from celery.canvas import Signature
from kombu.serialization import prepare_accept_content, register, unregister

from celery_delayq.model.compat import MessageChecker, Problem
from celery_delayq.model.compat.binding import MAX_SHAPES, Level, TaskBinding, Verdict
from celery_delayq.model.compat.calls import Part
from tests.unit.model.compat.conftest import QUEUE

#: Every body appends here: the arguments were bound, and the task would run.
reached: list[str] = []


def keeps_signature(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def adds_an_argument(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function("database", *args, **kwargs)

    return wrapper


def hides_signature(function: Any) -> Any:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def takes_one_itself(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(a: Any) -> Any:
        return function(a, b=1)

    return wrapper


def none() -> None:
    reached.append("none")


def one(a: Any) -> None:
    reached.append("one")


def two(a: Any, b: Any) -> None:
    reached.append("two")


def with_default(a: Any, b: Any = 2) -> None:
    reached.append("with_default")


def keyword_only(a: Any, *, b: Any) -> None:
    reached.append("keyword_only")


def positional_only(a: Any, /, b: Any = 2) -> None:
    reached.append("positional_only")


def any_positional(a: Any, *args: Any) -> None:
    reached.append("any_positional")


def any_keyword(a: Any, **kwargs: Any) -> None:
    reached.append("any_keyword")


def anything(*args: Any, **kwargs: Any) -> None:
    reached.append("anything")


FUNCTIONS = (
    *(none, one, two, with_default, keyword_only, positional_only),
    *(any_positional, any_keyword, anything),
)

ARGS: tuple[tuple[Any, ...], ...] = ((), (1,), (1, 2), (1, 2, 3))
KWARGS: tuple[dict[str, Any], ...] = ({}, {"a": 1}, {"b": 1}, {"a": 1, "b": 2}, {"c": 3})

DECORATORS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda function: function,
    "keeps": keeps_signature,
    "keeps twice": lambda function: keeps_signature(keeps_signature(function)),
    "hides": hides_signature,
}


class CallsRun(Task):
    """A class of tasks whose calls pass on all arguments."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


class TakesOne(Task):
    """A class of tasks whose calls take one argument."""

    def __call__(self, a: Any) -> Any:
        return self.run(a)


def runs(task: Any, args: Any, kwargs: Any) -> bool:
    """Call a task as a worker does; return whether its body was reached."""
    reached.clear()
    with suppress(TypeError, ValueError):  # Pydantic's error is a ValueError
        task(*args, **kwargs)
    return bool(reached)


def checker_of(app: Celery, **options: Any) -> MessageChecker:
    accept = prepare_accept_content(app.conf.accept_content)
    return MessageChecker(app.tasks, accept, **options)


def message_of(app: Celery, signature: Any) -> dict[str, Any]:
    """Publish a signature; return the message in the broker."""
    signature.apply_async()
    with app.connection_for_read() as connection:
        message: dict[str, Any] = connection.default_channel._get(QUEUE)
        connection.default_channel._purge(QUEUE)
    return message


def check_against_calls(task: Any, unknown: bool = False) -> list[Level]:
    """Compare all verdicts on a task with its calls; return the levels."""
    binding = TaskBinding(task)
    levels: list[Level] = []
    for args, kwargs in itertools.product(ARGS, KWARGS):
        verdict, detail = binding.bind(args, kwargs)
        levels.append(verdict.level)
        if verdict.level == "unknown":
            assert unknown, (args, kwargs, detail)
        else:
            assert (verdict is Verdict.BINDS) is runs(task, args, kwargs), (args, kwargs, detail)
    return levels


@pytest.mark.parametrize("decorator", DECORATORS)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
def test_the_verdict_is_that_of_a_call(app: Celery, function: Any, decorator: str) -> None:
    may_hide = decorator in ("keeps", "keeps twice", "hides")
    task = app.task(shared=False, name="checked.task")(DECORATORS[decorator](function))

    levels = check_against_calls(task, may_hide)

    assert ("fails" not in levels) is (decorator == "hides" or function is anything)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("base", [Task, CallsRun])
def test_bound_tasks_and_own_classes_are_called_alike(
    app: Celery, function: Any, base: type[Task]
) -> None:
    plain = app.task(shared=False, name="checked.plain", base=base)(function)
    retried = app.task(shared=False, name="checked.retried", base=base, autoretry_for=(KeyError,))(
        function
    )

    check_against_calls(plain, base is CallsRun)
    check_against_calls(retried, base is CallsRun)


@pytest.mark.parametrize("function", [one, with_default, positional_only, anything])
def test_the_outermost_signature_counts(app: Celery, function: Any) -> None:
    check_against_calls(app.task(shared=False, name="by class", base=TakesOne)(function))
    if function is not one:
        check_against_calls(app.task(shared=False, name="decorated")(takes_one_itself(function)))


def test_a_bound_task_gets_itself_first(app: Celery) -> None:
    @app.task(bind=True, shared=False)
    def with_self(self: Any, a: Any, b: Any = 2) -> None:
        reached.append("with_self")

    class Own(Task):
        name = "checked.own"

        def run(self, a: Any, *, b: Any) -> None:
            reached.append(f"own {a} {b}")

    assert {"binds", "fails"} == {*check_against_calls(with_self)}
    assert {"binds", "fails"} == {*check_against_calls(app.register_task(Own()))}


def test_what_a_decorator_may_add_cannot_be_told(app: Celery) -> None:
    added = TaskBinding(app.task(shared=False, name="checked.adds")(adds_an_argument(two)))
    hidden = TaskBinding(app.task(shared=False, name="checked.hides")(hides_signature(two)))

    assert added.bind((1,), {}).verdict is Verdict.HIDDEN_SIGNATURE
    assert added.bind((1,), {"c": 1}).verdict is Verdict.ARGUMENTS
    assert {hidden.bind(args, {}).verdict for args in ARGS} == {Verdict.HIDDEN_SIGNATURE}


def test_a_function_without_a_signature_cannot_be_told(app: Celery) -> None:
    class Compiled(Task):
        name = "checked.compiled"

        def run(self, a: Any) -> None:
            reached.append(f"compiled {a}")

    Compiled.run.__signature__ = "none"  # type: ignore[attr-defined]

    found = TaskBinding(app.register_task(Compiled())).bind((1,), {})

    assert found.verdict is Verdict.HIDDEN_SIGNATURE


def test_the_signature_that_a_decorator_declares_counts(app: Celery) -> None:
    def declared(*args: Any, **kwargs: Any) -> None:
        one(*args, **kwargs)

    declared.__signature__ = inspect.signature(one)  # type: ignore[attr-defined]

    assert {"binds", "fails"} == {*check_against_calls(app.task(shared=False, name="d")(declared))}


def test_remembered_shapes_are_bounded(app: Celery) -> None:
    binding = TaskBinding(app.task(shared=False, name="checked.any")(any_keyword))

    for number in range(2 * MAX_SHAPES):
        binding.bind((1,), {f"key-{number}": 1})

    assert len(binding._by_shape) <= MAX_SHAPES


# -- nested signatures -----------------------------------------------------------------------------

WRONG = "missing a required argument: 'b'"


def nested(app: Celery) -> dict[str, tuple[Any, Part | None]]:
    """Return canvases by name, and the part in which ``two`` lacks an argument, if any."""
    make = {each.__name__: app.task(shared=False, name=each.__name__)(each) for each in FUNCTIONS}
    fine, bad, none = make["one"].si(1), make["two"], make["none"].si()
    no_chord = {"task_id": "c"}
    return {
        "alone": (fine, None),
        "message": (bad.si(1), Part.MESSAGE),
        "chain, with the result": (chain(fine, bad.s(1)), None),
        "chain, without": (chain(fine, bad.si(1)), Part.CHAIN),
        "chain, its end": (chain(fine, none, none, bad.s()), Part.CHAIN),
        "callback": (_linked(fine, bad.s(1)), None),
        "callback, missing": (_linked(fine, bad.s()), Part.CALLBACK),
        "callback of a callback": (_linked(fine, _linked(none, bad.s())), Part.CALLBACK),
        "callback of a link": (chain(fine, _linked(none, bad.s())), Part.CALLBACK),
        "errback of three": (_failing(fine, make["two"].si(1)), Part.ERRBACK),
        "errback": (_failing(fine, make["one"].s()), None),
        "errback of a link": (chain(fine, _failing(none, bad.si(1))), Part.ERRBACK),
        "chord body": (chord([fine], bad.s()), Part.CHORD_BODY),
        "chord body, fine": (chord([fine], bad.s(2)), None),
        "chain into a group": (chain(fine, group(bad.s(), none)), Part.GROUP),
        "chain into a chord": (chain(fine, chord([none, none], bad.s())), Part.CHORD_BODY),
        "chord of the chain": (chain(fine, chord([bad.s(), none], none)), Part.GROUP),
        "chord, then a link": (chord([fine], chain(none, bad.s())), Part.CHAIN),
        "map": (bad.map([1, 2]), Part.MAP),
        "starmap": (bad.starmap([(1, 2), (3, 4)]), None),
        "starmap, missing": (bad.starmap([(1, 2), (3,)]), Part.MAP),
        "options": (fine.set(**no_chord), None),
    }


def _linked(signature: Signature, to: Signature) -> Signature:
    found = signature.clone()
    found.link(to)
    return found


def _failing(signature: Signature, to: Signature) -> Signature:
    found = signature.clone()
    found.link_error(to)
    return found


NAMES = [*nested(Celery("names", set_as_current=False))]


@pytest.mark.parametrize("name", NAMES)
def test_signatures_inside_a_message_are_checked(app: Celery, name: str) -> None:
    signature, part = nested(app)[name]

    problems = checker_of(app).message_problems(message_of(app, signature))

    expected = [] if part is None else [Problem("two", part, Verdict.ARGUMENTS, WRONG)]
    assert problems == expected


@pytest.mark.parametrize("name", NAMES)
def test_tasks_that_are_gone_are_found_in_every_part(app: Celery, name: str) -> None:
    signature, part = nested(app)[name]
    message = message_of(app, signature)
    left = {name: task for name, task in app.tasks.items() if name != "two"}

    problems = MessageChecker(left, {"application/json"}).message_problems(message)

    gone = {problem for problem in problems if problem.verdict is Verdict.NOT_REGISTERED}
    assert {problem.task for problem in gone} <= {"two"}
    assert gone or part is None
    assert {part} <= {problem.part for problem in gone} or part is None


def test_an_errback_gets_what_celery_gives_it(app: Celery) -> None:
    def three(request: Any, exc: Any, traceback: Any) -> None: ...

    def with_self(self: Any, id: Any) -> None: ...

    def three_and_self(self: Any, request: Any, exc: Any, traceback: Any) -> None: ...

    tasks = {
        "three": (app.task(shared=False, name="three")(three), True),
        "with_self": (app.task(shared=False, name="with_self", bind=True)(with_self), True),
        "three_and_self": (
            app.task(shared=False, name="three_and_self", bind=True)(three_and_self),
            False,
        ),
        "two": (app.task(shared=False, name="two")(two), False),
    }
    fine = app.task(shared=False, name="one")(one).si(1)
    checker = checker_of(app)
    for name, (task, binds) in tasks.items():
        problems = checker.message_problems(message_of(app, _failing(fine, task.s())))
        assert [each.part for each in problems] == [Part.ERRBACK] * (not binds), name


# -- content ---------------------------------------------------------------------------------------


def test_a_content_type_that_the_app_does_not_accept_fails(app: Celery) -> None:
    task = app.task(shared=False, name="one")(one)
    message = message_of(app, task.s(1).set(serializer="yaml"))

    assert checker_of(app).message_problems(message) == [
        Problem("one", Part.MESSAGE, Verdict.CONTENT_TYPE, "application/x-yaml")
    ]
    app.conf.accept_content = ["yaml"]
    assert checker_of(app).message_problems(message) == []


class Bomb:
    """Notes when it is unpickled."""

    def __reduce__(self) -> Any:
        return note, ("unpickled",)


def note(what: str) -> None:
    reached.append(what)


def test_nothing_is_unpickled_unless_asked(app: Celery) -> None:
    app.conf.accept_content = ["json", "pickle"]
    task = app.task(shared=False, name="one")(one)
    message = message_of(app, task.s(Bomb()).set(serializer="pickle"))
    reached.clear()

    problems = checker_of(app).message_problems(message)

    assert (problems[0].verdict, reached) == (Verdict.NOT_DECODED, [])
    assert checker_of(app, unpickle=True).message_problems(message) == []
    assert reached == ["unpickled"]


def test_content_of_an_own_serializer_is_not_decoded_unless_asked(app: Celery) -> None:
    register("own", pickle.dumps, pickle.loads, "application/x-own", "binary")
    try:
        app.conf.accept_content = ["own"]
        task = app.task(shared=False, name="two")(two)
        message = message_of(app, task.s(1).set(serializer="own"))

        (problem,) = checker_of(app).message_problems(message)
        (decoded,) = checker_of(app, unpickle=True).message_problems(message)
    finally:
        unregister("own")
    assert (problem.verdict, decoded.verdict) == (Verdict.NOT_DECODED, Verdict.ARGUMENTS)


@pytest.mark.parametrize("compression", ["gzip", "bzip2"])
def test_compressed_content_is_read(app: Celery, compression: str) -> None:
    task = app.task(shared=False, name="two")(two)
    message = message_of(app, task.s(1).set(compression=compression))

    assert [each.verdict for each in checker_of(app).message_problems(message)] == [
        Verdict.ARGUMENTS
    ]


@pytest.mark.parametrize(
    ("message", "verdict"),
    [
        (None, Verdict.UNREADABLE),
        ([], Verdict.UNREADABLE),
        ({}, Verdict.UNREADABLE),
        ({"headers": {}}, Verdict.OTHER_PROTOCOL),
        ({"headers": {"task": ["one"]}}, Verdict.OTHER_PROTOCOL),
        ({"headers": {"task": "one"}, "content-type": ["x"]}, Verdict.CONTENT_TYPE),
        ({"headers": {"task": "one"}, "content-type": "application/json"}, Verdict.UNREADABLE),
    ],
)
def test_messages_of_anybody_have_a_verdict(app: Celery, message: Any, verdict: Verdict) -> None:
    app.task(shared=False, name="one")(one)

    assert [each.verdict for each in checker_of(app).message_problems(message)] == [verdict]


@pytest.mark.parametrize(
    "body",
    [
        *("[1, 2]", '[[1], {}, {"chain": 7}]', '[[1], {}, {"chain": [7]}]', '["one", {}, {}]'),
        *("[[1], [], {}]", '[[1], {}, {"callbacks": [{"task": ["x"]}]}]', "[[1], {}, 7]"),
        '[[1], {}, {"chord": {"task": "celery.starmap", "args": [], "kwargs": {}}}]',
        '[[1], {}, {"callbacks": [{"task": "celery.chord_unlock", "args": []}]}]',
    ],
)
def test_bodies_of_anybody_are_unreadable(app: Celery, body: str) -> None:
    app.task(shared=False, name="one")(one)
    properties = {"delivery_tag": "t", "delivery_info": {}}
    message = {
        **{"headers": {"task": "one", "id": "x"}, "body": body, "properties": properties},
        **{"content-type": "application/json", "content-encoding": "utf-8"},
    }

    verdicts = {each.verdict for each in checker_of(app).message_problems(message)}

    assert Verdict.UNREADABLE in verdicts
