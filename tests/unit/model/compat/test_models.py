"""Arguments that Pydantic models validate: the judge is a call of the task itself.

Celery 5.5 does not validate arguments whose annotations are texts, as ``from __future__ import
annotations`` makes them.
"""

import functools
import itertools
from typing import Any, Optional

import pytest
from celery import Celery, chain

from celery_delayq.model.compat import Problem
from celery_delayq.model.compat.binding import TaskBinding, Verdict
from celery_delayq.model.compat.calls import Part
from tests.unit.model.compat.test_messages import (
    checker_of,
    keeps_signature,
    message_of,
    none,
    reached,
    runs,
)

pydantic = pytest.importorskip("pydantic")


class Order(pydantic.BaseModel):  # type: ignore[name-defined]
    """A model of an argument."""

    id: int
    tags: list[str] = pydantic.Field(default_factory=list)

    @pydantic.field_validator("id")
    @classmethod
    def is_positive(cls, value: int) -> int:
        """Refuse what is not positive, with the value in the text."""
        assert value > 0, f"{value} is secret"
        return value


def model_tasks(app: Celery) -> dict[str, Any]:
    def lax(order: Order, note: str = "") -> None:
        reached.append("lax")

    def optional(order: Optional[Order] = None) -> None:  # noqa: UP045
        reached.append("optional")

    def with_self(self: Any, order: Order) -> None:
        reached.append("with_self")

    def several(*orders: Order, **more: Order) -> None:
        reached.append("several")

    make = functools.partial(app.task, shared=False, pydantic=True)
    return {
        "lax": make(name="lax")(lax),
        "strict": make(name="strict", pydantic_strict=True)(lax),
        "optional": make(name="optional")(optional),
        "with_self": make(name="with_self", bind=True)(with_self),
        "retried": make(name="retried", autoretry_for=(KeyError,))(lax),
        "several": make(name="several")(several),
        "decorated": make(name="decorated")(keeps_signature(lax)),
    }


@pytest.mark.parametrize(
    "name", ["lax", "strict", "optional", "with_self", "retried", "several", "decorated"]
)
def test_models_are_validated_as_in_a_call(app: Celery, name: str) -> None:
    task = model_tasks(app)[name]
    binding = TaskBinding(task)
    orders: tuple[Any, ...] = (
        {"id": 1},
        {"id": "1"},
        {"id": 0},
        {},
        None,
        7,
        {"id": 1, "tags": ["a", 5]},
    )
    calls: list[tuple[Any, dict[str, Any]]] = [(args, {}) for args in itertools.product(orders)]
    calls += [((), {"order": order}) for order in orders]
    calls += [((), {}), (({"id": 1}, "note", 3), {})]

    verdicts = {str(call): binding.bind(*call).verdict for call in calls}

    for call in calls:
        assert (verdicts[str(call)] is Verdict.BINDS) is runs(task, *call), call
    if name != "several":  # Celery does not validate these
        assert {Verdict.BINDS, Verdict.MODEL} <= {*verdicts.values()}


def test_the_reason_of_a_model_has_no_values(app: Celery) -> None:
    binding = TaskBinding(model_tasks(app)["lax"])

    assert binding.bind(({"id": 0},), {}) == (Verdict.MODEL, "Order id: assertion_error")
    assert binding.bind(({"id": 1, "tags": ["a", 5]},), {}).detail == "Order tags.*: string_type"


def test_a_result_that_a_model_will_get_is_not_validated(app: Celery) -> None:
    tasks = model_tasks(app)
    app.task(shared=False, name="first")(none)
    first = app.tasks["first"].si()
    checker = checker_of(app)

    fine = checker.message_problems(message_of(app, chain(first, tasks["lax"].s("note"))))
    wrong = checker.message_problems(message_of(app, chain(first, tasks["lax"].si({"id": 0}))))

    assert fine == []
    assert wrong == [Problem("lax", Part.CHAIN, Verdict.MODEL, "Order id: assertion_error")]
