"""What a worker says of limits that cannot hold where it runs, and when it does not start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ, Key, Limit
from celery_delayq.integration import app_warnings
from celery_delayq.integration.install import _change_extended_worker
from celery_delayq.model.cluster_tags import cluster_tags, tag_of

PAY = Limit("pay", rate=1, concurrency=2)


def app_on(broker: str, *, extension: bool = True, **options: Any) -> Celery:
    """Return an app with one task ``shop.pay``."""
    app = Celery("app", broker=broker, set_as_current=False)
    app.conf.task_acks_late = True
    if extension:
        DelayQ(app)
    add(app, "shop.pay", **options)
    return app


def add(app: Celery, name: str, **options: Any) -> None:
    def run() -> None:
        """Stand for any task."""

    app.task(name=name, shared=False, **options)(run)


def texts_of(app: Celery) -> list[str]:
    with app.connection_for_write() as connection:
        return [text for text in app_warnings.problems(app, connection) if "imit" in text]


def refusals_of(app: Celery) -> list[str]:
    with app.connection_for_write() as connection:
        texts = app_warnings.problems(app, connection)
        return [text for text in texts if text.startswith("Calls are refused")]


@pytest.mark.parametrize(
    ("broker", "extension", "expected"),
    [
        ("delayq+redis://", True, []),
        ("redis://", True, ["The limits 'pay' have no effect on this broker: they need delayq+"]),
        ("delayq+amqp://", True, ["The limits 'pay' cannot hold on RabbitMQ: calls of their"]),
        ("delayq+redis://", False, ["The option limit of tasks has no effect: it needs DelayQ("]),
    ],
)
def test_a_limit_without_effect_is_reported(
    broker: str, extension: bool, expected: list[str]
) -> None:
    texts = texts_of(app_on(broker, extension=extension, limit=PAY))

    assert [text[: len(start)] for text, start in zip(texts, expected, strict=True)] == expected
    assert texts_of(app_on(broker, extension=extension)) == []


def test_a_task_with_early_acks_is_reported() -> None:
    app = app_on("delayq+redis://", limit=PAY, acks_late=False)
    add(app, "shop.other", limit=Limit("rate", rate=1), acks_late=False)

    assert texts_of(app) == [
        "A limit does not hold: task shop.pay acknowledges when it starts, so concurrency=2 of "
        "Limit('pay') cannot hold; set acks_late=True at the task, or DelayQ(app, "
        "at_least_once=True)"
    ]


def test_a_limit_over_several_hash_tags_of_a_cluster_is_reported() -> None:
    tags = cluster_tags(12)
    names = [f"q{number}" for number in range(100)]
    first = names[0]
    same = next(name for name in names[1:] if tag_of(name, tags) == tag_of(first, tags))
    other = next(name for name in names if tag_of(name, tags) != tag_of(first, tags))
    app = app_on("delayq+rediscluster://h1:1;delayq+rediscluster://h2:2", limit=PAY)
    add(app, "shop.too", limit=PAY)
    app.conf.task_routes = {"shop.pay": first, "shop.too": same, "shop.away": other}
    assert texts_of(app) == []

    add(app, "shop.away", limit=PAY)

    [text] = texts_of(app)
    assert text.startswith("Limit('pay') does not hold over its queues")
    assert f"{first!r} is in {tag_of(first, tags)}" in text
    assert f"{other!r} is in {tag_of(other, tags)}" in text
    assert "task_routes" in text


#: Options of each kind of task.
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bound": {"bind": True},
    "autoretry": {"autoretry_for": (KeyError,)},
}

#: What is wrong with a key of ``charge(customer, order="")``.
KEYS = {
    "{customer}": None,
    "{customer.id}:{order[0]}": None,
    "{0}:{}": None,
    "all": None,
    "{customr}": "has no argument 'customr'; did you mean customer?",
    "{customer}:{customr.id}": "has no argument 'customr'; did you mean customer?",
}


@pytest.mark.parametrize(("key", "problem"), KEYS.items())
@pytest.mark.parametrize("option", ["limit", "unique_key"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_names_no_argument_is_reported(
    key: str, problem: str | None, option: str, kind: str
) -> None:
    def charge(customer: str, order: str = "") -> None:
        """Stand for any task."""

    def charge_bound(self: Any, customer: str, order: str = "") -> None:
        """Stand for any bound task."""

    app = app_on("delayq+redis://")
    value = key if option == "unique_key" else Limit("stripe", rate=1, key=key)
    task = charge_bound if kind == "bound" else charge
    options = {option: value, **KINDS[kind]}
    app.task(name="shop.charge", shared=False, **options)(task)

    texts = refusals_of(app)

    assert len(texts) == (problem is not None)
    for text in texts:
        assert text.startswith("Calls are refused: shop.charge: ")
        assert f"key={key!r}" in text
        assert str(problem) in text


@pytest.mark.parametrize(
    ("key", "problem"), [("{customer", "cannot be read: "), (" ", "is an empty text")]
)
def test_a_template_without_any_key_is_reported(key: str, problem: str) -> None:
    """That of a limit is refused where it is written."""
    [text] = refusals_of(app_on("delayq+redis://", unique_key=key))

    assert text.startswith(f"Calls are refused: shop.pay: unique_key={key!r} {problem}")


@pytest.mark.parametrize("key", [Key("{customr}"), lambda *_, **__: "one"])
def test_a_key_that_is_no_template_is_not_read(key: Any) -> None:
    assert refusals_of(app_on("delayq+redis://", unique_key=key)) == []


def test_unique_options_that_contradict_each_other_are_reported() -> None:
    [text] = refusals_of(app_on("delayq+redis://", unique_key="one", on_conflict="refuse"))

    assert text.startswith("Calls are refused: shop.pay: on_conflict='refuse'; valid are")


def test_a_task_that_takes_any_names_may_have_any_key() -> None:
    def run(**_: Any) -> None:
        """Stand for any task."""

    app = app_on("delayq+redis://")
    app.task(name="shop.any", shared=False, unique_key="{customr}")(run)

    assert refusals_of(app) == []


@pytest.mark.parametrize(
    ("limit", "match"),
    [("100/m", "task shop.pay: limit='100/m'"), (Limit("pay", rate=2), "two limits have the name")],
)
def test_a_worker_with_a_wrong_limit_does_not_start(limit: Any, match: str) -> None:
    app = app_on("delayq+redis://", limit=limit)
    add(app, "shop.first", limit=PAY)

    with pytest.raises(SystemExit, match=f"The worker cannot start: .*{match}"):
        _change_extended_worker(SimpleNamespace(app=app))


def test_a_pattern_that_matches_no_task_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    app = app_on("delayq+redis://")
    DelayQ(app, limits={"shop.*": PAY, "shoo.*": Limit("typo", rate=1)})

    _change_extended_worker(SimpleNamespace(app=app))

    assert "DelayQ(limits={'shoo.*': …}) matches no task of this app" in caplog.text
    assert "'shop.*'" not in caplog.text
