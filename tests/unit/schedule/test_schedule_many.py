"""Items, reports and templates of ``schedule_many``, without Redis."""

from __future__ import annotations

import pickle

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.errors import ConfigError, DelayQError
from celery_delayq.schedule.items import Item, ItemReader, ManyFailed, ManyReport
from celery_delayq.schedule.message_template import message_id_of_id, template_key


def nothing() -> None:
    """Stand for any task."""


@pytest.fixture
def app() -> Celery:
    app = Celery("items", broker="memory://", set_as_current=False)
    app.task(name="one", shared=False)(nothing)
    app.task(name="two", shared=False)(nothing)
    return app


def test_the_message_id_of_an_id_is_always_the_same() -> None:
    first, again, other = (message_id_of_id(f"reminder-{n}") for n in (17, 17, 18))

    assert first == again != other
    assert len(message_id_of_id("x" * 1000)) == 16


def test_a_call_without_an_id_gets_one_and_a_message_id(app: Celery) -> None:
    reader = ItemReader(app, "one", {})

    jobs = [reader.read(Item()) for _ in range(2)]

    assert len({job.id for job in jobs}) == len({job.message_id for job in jobs}) == 2
    assert {len(job.message_id) for job in jobs} == {16}


def test_a_call_with_an_id_has_the_message_id_of_that_id(app: Celery) -> None:
    job = ItemReader(app, "one", {}).read({"id": "reminder-17"})

    assert (job.id, job.message_id) == ("reminder-17", message_id_of_id("reminder-17"))


def test_what_is_said_for_all_fills_what_an_item_leaves_open(app: Celery) -> None:
    reader = ItemReader(app, "one", {"countdown": 60, "queue": "all", "headers": {"x": 1}})

    open_, own = reader.read(Item()), reader.read(Item(eta="2030-01-01", task="two", queue="own"))

    found = [(job.target.name, job.countdown, job.eta, job.queue) for job in (open_, own)]
    assert found == [("one", 60, None, "all"), ("two", None, "2030-01-01", "own")]
    assert reader.common == {"headers": {"x": 1}}


def test_tasks_and_their_names_are_the_same_target(app: Celery) -> None:
    reader = ItemReader(app, None, {})
    proxy = app.task(name="proxied", shared=False)(nothing)

    targets = [reader.read(Item(task=task)).target for task in ("one", app.tasks["one"])]

    assert targets[0] == targets[1]
    assert targets[0].task is app.tasks["one"]
    assert reader.read(Item(task=proxy)).target.task is app.tasks["proxied"]
    assert reader.read(Item(task="elsewhere")).target == ("elsewhere", None, True)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Item((1,), countdown=1, id="a"), Item((2, 3), {"x": 1}, countdown=2.5, id="b")),
        (Item(eta="2030-01-01"), Item(eta="2031-01-01")),
        (Item(options={"headers": {"x": [1]}}), Item(options={"headers": {"x": [1]}})),
    ],
)
def test_items_that_differ_in_what_templates_fill_in_are_of_one_kind(
    app: Celery, one: Item, other: Item
) -> None:
    reader = ItemReader(app, "one", {})

    assert template_key(reader.read(one)) == template_key(reader.read(other)) is not None


@pytest.mark.parametrize(
    "other",
    [
        *(Item(countdown=5), Item(eta="2030-01-01"), Item(task="two"), Item(queue="other")),
        *(Item(priority=1), Item(priority=True), Item(expires=5)),
        *(Item(options={"headers": {"x": value}}) for value in (1, True)),
    ],
)
def test_items_that_differ_otherwise_are_of_another_kind(app: Celery, other: Item) -> None:
    reader = ItemReader(app, "one", {})
    seen = [
        template_key(reader.read(item))
        for item in (Item(), Item(priority=2), Item(options={"headers": {"x": 2}}))
    ]

    assert template_key(reader.read(other)) not in [None, *seen]


@pytest.mark.parametrize(
    "item",
    [
        Item("text"),
        Item((1,), kwargs=[("x", 1)]),
        Item(countdown="5"),
        Item(options={"link": object()}),
        Item(queue=[]),
    ],
)
def test_what_cannot_be_filled_in_is_of_no_kind(app: Celery, item: Item) -> None:
    assert (
        template_key(ItemReader(app, "one", {}).read(item._replace(queue=["unhashable"]))) is None
    )
    assert item.queue == [] or template_key(ItemReader(app, "one", {}).read(item)) is None


def test_a_report_says_how_many_came_to_what() -> None:
    report = ManyReport({"scheduled": 5, "ready": 1, "replaced": 1, "kept": 1, "full": 2}, taken=12)

    assert (report.stored, report.refused, report.uncertain) == (7, 2, 2)
    counts = "5 scheduled, 1 ready, 1 replaced, 1 kept, 2 full, 2 uncertain"
    assert str(report) == f"12 items: {counts}"
    assert str(ManyReport()) == "0 items: none stored"


def test_a_failure_is_an_error_of_ours_and_passes_through_result_backends() -> None:
    error = ManyFailed("it ended", ManyReport(taken=3))

    again = pickle.loads(pickle.dumps(error))

    assert issubclass(ManyFailed, DelayQError)
    assert (str(again), again.report.taken) == ("it ended", 3)


def test_an_extension_without_an_app_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="init_app"):
        DelayQ().schedule_many([Item()])
