"""The page of changes to Celery, and what each change serves."""

from __future__ import annotations

from celery_delayq.integration import fast, install
from celery_delayq.integration.replace import Promise
from tests.support import changes_page


def test_the_page_lists_the_changes_that_the_code_makes() -> None:
    assert changes_page.PAGE.read_text("utf-8") == changes_page.page(), (
        "run: python -m tests.support.changes_page"
    )


def test_each_change_serves_a_promise_or_speed() -> None:
    for_speed = {id(each) for each in (*fast.PROCESS, *fast.WORKER)}

    for change in install.all_changes():
        assert (change.promise is None) == (id(change) in for_speed), change.target
    assert {each.promise for each in install.all_changes()} - {None} == {*Promise}


def test_each_change_is_made_at_one_moment() -> None:
    made = [id(each) for changes in changes_page.MOMENTS.values() for each in changes]

    assert sorted(made) == sorted(map(id, install.all_changes()))
