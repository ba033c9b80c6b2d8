"""What a worker refuses in the headers of a task: each one, beside headers that are as usual."""

from __future__ import annotations

from typing import Any

import pytest

from celery_delayq.errors import InvalidOption
from celery_delayq.model.task_options import check_own, check_received

USUAL: dict[str, Any] = {
    "id": "id-1",
    "task": "shop.mail",
    "root_id": "id-1",
    "parent_id": None,
    "group": None,
    "shadow": None,
    "timelimit": [None, None],
    "stamped_headers": None,
    "stamps": {},
}
GOOD: list[dict[str, Any]] = [
    {},
    {"id": "ünï", "task": "ünï"},
    {"parent_id": "p", "group": "g", "shadow": "s"},
    {"timelimit": [60, 30.5]},
    {"timelimit": None},
    {"stamped_headers": ["customer"], "stamps": {"customer": ["us"]}},
]
BAD: dict[str, tuple[Any, ...]] = {
    "id": (None, "", 5, ["a"], b"a", "\ud800"),
    "task": ("\ud800",),
    "root_id": ([], {}, "\ud800"),
    "parent_id": ([], {}, "\ud800"),
    "group": ([], {}, "\ud800"),
    "shadow": ([], {}, "\ud800"),
    "timelimit": ([None], [-1, None], [None, "1h"], [0, float("nan")], 60, "ab"),
    "stamped_headers": ("customer", [5]),
    "stamps": (["customer"], "x"),
}


@pytest.mark.parametrize("changed", GOOD)
def test_headers_of_a_task_that_may_run_pass(changed: dict[str, Any]) -> None:
    check_received(USUAL | changed)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD.items() for value in values]
)
def test_one_wrong_header_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidOption):
        check_received(USUAL | {name: value})


def own(**fields: Any) -> dict[str, Any]:
    return {"delivery_tag": "tag", "delayq": fields}


@pytest.mark.parametrize(
    "limit", ["stripe:c1", "stripe:c1 5", "stripe:", "stripe: 5", "a%20b/c:x%3Ay 999"]
)
def test_a_mark_of_a_limit_passes(limit: str) -> None:
    check_own(own(limit=limit))


@pytest.mark.parametrize(
    "limit",
    [
        *(None, "", 5, [], {}, "stripe", ":", ":c1", "stripe:c1 -1", "stripe:c1 x"),
        *("stripe:c1 5 6", "stripe:c1\0 5", "stripe:c1\n", 'a:"', "a:b:c", "é:", "a:é", "a:\ud800"),
        *("a:" + "x" * 201, "x" * 201 + ":", "a:  5"),
    ],
)
def test_a_mark_that_scripts_cannot_read_is_refused(limit: Any) -> None:
    with pytest.raises(InvalidOption, match="limit="):
        check_own(own(limit=limit))
