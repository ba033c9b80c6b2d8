"""What the messages of a canvas tell of it."""

from __future__ import annotations

from typing import Any

from celery import Celery, chain, chord, group, signature
from celery.app.task import Context
from celery.canvas import Signature

from celery_delayq.model.canvas import Canvas, chord_contexts, group_of_chain, without_chord

app = Celery("canvases", backend="cache+memory://", set_as_current=False)


def task(name: str, **options: Any) -> Signature:
    return signature(name, app=app, options=options)


def frozen(member: Any, outer: Signature) -> list[dict[str, Any]]:
    """Return the links after the first of a member of a chord, as its message has them."""
    member.freeze(group_id="the group", chord=outer, group_index=3)
    return list(reversed(member.tasks[1:]))


def test_a_task_belongs_to_its_root_and_its_group() -> None:
    headers = {"root_id": "root", "group": "group"}

    assert Canvas.all_of(headers, {}) == {Canvas("r", "root"), Canvas("g", "group")}
    assert Canvas.all_of({"root_id": None}, {"group": "of a chain"}) == {Canvas("g", "of a chain")}
    assert Canvas.all_of({}, {}) == set()


def test_a_chain_belongs_to_the_group_that_its_last_link_has() -> None:
    links = frozen(chain(task("one"), task("two"), task("three")), task("body"))

    assert group_of_chain(links) == "the group"
    assert group_of_chain([dict(task("two"))]) is None
    assert group_of_chain([]) is None
    assert group_of_chain(None) is None


def test_or_the_body_of_the_chord_that_its_last_link_is() -> None:
    inner = chord([task("two"), task("three")], task("four"), app=app)
    links = frozen(chain(task("one"), inner), task("body"))

    assert links[0]["subtask_type"] == "chord"
    assert group_of_chain(links) == "the group"


def test_chords_wait_for_the_task_and_for_what_is_chained_to_it() -> None:
    inner = chord(group(task("two"), task("three")), task("four", task_id="four"), app=app)
    links = frozen(chain(task("one"), inner), task("body"))

    [alone] = chord_contexts(Context(id="one", group="g", chord=task("body"), chain=None))
    [last] = chord_contexts(Context(id="one", chord=None, chain=links))

    assert (alone.id, alone.group, alone.chord["task"]) == ("one", "g", "body")
    assert (last.id, last.group, last.group_index) == ("four", "the group", 3)
    assert last.chord["task"] == "body"
    untold = [without_chord(each) for each in links]
    assert [*chord_contexts(Context(id="one", chain=untold))] == []


def test_what_is_no_signature_stays_as_it_is() -> None:
    assert without_chord("garbage") == "garbage"
    assert without_chord({"task": "one"}) == {"task": "one", "options": {}}
