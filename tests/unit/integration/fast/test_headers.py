"""Headers that are made in a shorter way are those that Celery makes."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.app.amqp import AMQP

from celery_delayq.integration.fast import headers

FUNCTION = getattr(AMQP.as_task_v2, "__wrapped__", AMQP.as_task_v2)


class Short(AMQP):
    """A factory of messages with short texts of arguments."""

    argsrepr_maxsize = 9


@pytest.mark.parametrize("factory", [AMQP, Short])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"args": (1, "two", None), "kwargs": {"three": 3.0}},
        {"args": ["a quote '", {"nested": ()}], "kwargs": {"key": b"bytes"}},
        {"args": (1,), "argsrepr": "hidden", "kwargsrepr": "{}", "origin": "other@host"},
    ],
    ids=["nothing", "plain", "others", "given"],
)
def test_a_message_has_the_headers_that_celery_makes(
    factory: type[AMQP], given: dict[str, Any]
) -> None:
    app = Celery("app", set_as_current=False)
    ours = headers.compute_headers(AMQP, FUNCTION)

    expected, made = (as_task(factory(app), "id", "name", **given) for as_task in (FUNCTION, ours))

    assert made == expected
