from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.errors import ConfigError
from celery_delayq.integration import not_run
from celery_delayq.model.names import Renames, renames_of
from celery_delayq.model.unique import renamed_key


def stand_in() -> None:
    """Stand for any task."""


def test_a_former_name_leads_to_the_name_of_the_task() -> None:
    renames = Renames({"a": "b", "b": "c", "x": "c"})

    assert [renames.of(name) for name in "abcxy"] == ["c", "c", "c", "c", "y"]
    assert renames.names("c") == ("c", "a", "b", "x")
    assert renames.names("b") == ("b",)
    assert renames.all_names("b") == renames.all_names("c") == ("c", "a", "b", "x")
    assert renames.all_names("y") == ()
    assert renames.with_former_names({"c": 1, "y": 2}) == {"c": 1, "y": 2, "a": 1, "b": 1, "x": 1}
    assert not Renames()


@pytest.mark.parametrize(
    ("renamed", "what"),
    [
        ({"a": "a"}, "in a circle, 'a' → 'a'"),
        ({"a": "b", "b": "a"}, "in a circle, 'a' → 'b' → 'a'"),
        ({"z": "a", "a": "b", "b": "a"}, "in a circle, 'z' → 'a' → 'b' → 'a'"),
        ({"": "a"}, "expected the names of tasks"),
        ({"a": ""}, "expected the names of tasks"),
        ({"a": 5}, "expected the names of tasks"),
        ({None: "a"}, "expected the names of tasks"),
        ({"a": "\ud800"}, "expected the names of tasks"),
        ([("a", "b")], "expected the names of tasks"),
        ("ab", "expected the names of tasks"),
    ],
)
def test_names_that_lead_nowhere_are_refused(renamed: Any, what: str) -> None:
    with pytest.raises(ConfigError) as refused:
        DelayQ(renamed=renamed)
    assert str(refused.value).startswith("renamed")
    assert what in str(refused.value)


def test_names_must_go_with_the_tasks() -> None:
    renames = Renames({"shop.old": "shop.new"})

    with pytest.raises(ConfigError, match=r"the app has no task 'shop\.new'"):
        renames.check_tasks(["shop.other"])
    with pytest.raises(ConfigError, match=r"the app has a task 'shop\.old'"):
        renames.check_tasks(["shop.old", "shop.new"])
    renames.check_tasks(["shop.new"])


def test_an_app_finds_a_task_by_its_former_name_and_lists_it_once() -> None:
    app = Celery("shop", set_as_current=False)
    DelayQ(app, renamed={"shop.old": "shop.new", "shop.gone": "shop.other"})
    new = app.task(name="shop.new", shared=False)(stand_in)

    assert app.tasks["shop.old"] == app.tasks["shop.new"] == new
    assert "shop.old" not in app.tasks
    assert app.signature("shop.old").type == new
    assert not_run._task_of(app, "shop.old") == new
    for unknown in ("shop.gone", "shop.unknown"):
        with pytest.raises(app.tasks.NotRegistered, match=unknown):
            app.tasks[unknown]
    assert renames_of(Celery("other", set_as_current=False)).by_former_name == {}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("sshop.old:order%3A1", "sshop.new:order%3A1"),
        ("dshop.old:1", "dshop.new:1"),
        ("sshop.older:1", "sshop.older:1"),
    ],
)
def test_a_unique_key_has_the_name_of_its_task(key: str, expected: str) -> None:
    assert renamed_key(key, "shop.old", "shop.new") == expected
