"""Keys and screens of `top`: which key leads where, and what a filter means."""

from __future__ import annotations

from itertools import product

import pytest

from celery_delayq.cli.top.state import (
    KEYS,
    Place,
    Prompt,
    Screen,
    ShownRows,
    Sort,
    State,
    shown_queues,
    task_fields,
)
from celery_delayq.web.pages.overview import QueueRow

SHOWN = {
    Screen.QUEUES: ShownRows(["celery", "mail"], 5),
    Screen.TASKS: ShownRows(["one", "two"], 5, cursor="next"),
    Screen.TASK: ShownRows(["", "", ""], 5),
}

#: Where keys lead: names of places.
LEADS = {
    ("", "enter"): "queues > tasks celery",
    ("", "down enter"): "queues > tasks mail",
    ("", "end enter"): "queues > tasks mail",
    ("", "down k enter"): "queues > tasks celery",
    ("", "t"): "queues > tasks",
    ("", "escape"): "queues",
    ("", "n"): "queues",
    ("t", "enter"): "queues > tasks > task one",
    ("t", "j enter"): "queues > tasks > task two",
    ("t", "t"): "queues > tasks",
    ("t", "n"): "queues > tasks > tasks",
    ("t", "n escape"): "queues > tasks",
    ("t", "escape"): "queues",
    ("t enter", "escape"): "queues > tasks",
    ("t enter", "enter"): "queues > tasks > task one",
    ("t enter", "/"): "queues > tasks > task one",
    ("t enter", "escape escape"): "queues",
    ("", "o m 7 enter"): "queues > task m7",
    ("", "o m 7 escape"): "queues",
    ("", "o enter"): "queues",
    ("", "o q backspace x enter"): "queues > task x",
    ("t", "o x enter escape"): "queues > tasks",
    ("", "/ m enter"): "queues /m",
    ("", "/ m enter escape"): "queues",
    ("", "/ m enter / a enter"): "queues /ma",
    ("", "/ m escape"): "queues",
    ("t", "/ a = 1 enter"): "queues > tasks /a=1",
}


def pressed(state: State, keys: str) -> State:
    for key in keys.split():
        state = state.after(key, SHOWN[state.place.screen])
    return state


def named(place: Place) -> str:
    name = f"{place.screen.value} {place.name}".strip()
    return f"{name} /{place.filter}" if place.filter else name


@pytest.mark.parametrize(("first", "then"), LEADS)
def test_a_key_leads_to_a_screen(first: str, then: str) -> None:
    state = pressed(pressed(State(), first), then)

    assert " > ".join(map(named, state.places)) == LEADS[first, then]


def test_every_key_can_be_pressed_everywhere() -> None:
    keys = {key for keys in KEYS.values() for key, _ in keys} - {"space", "esc"}
    keys |= {
        *" qkjx/:\u00e4",
        "enter",
        "escape",
        "up",
        "down",
        "page up",
        "page down",
        "home",
        "end",
    }
    for first, key, (screen, shown) in product(("", "t", "t enter", "o", "/"), keys, SHOWN.items()):
        state = pressed(State(), first)
        for each in (shown, ShownRows()):
            after = state.after(key, each)
            assert after.is_over == (key == "q" and state.prompt is None), (first, key, screen)


def test_what_is_typed_is_no_command() -> None:
    state = pressed(State(), "o q t s")

    assert (state.prompt, state.typed, state.is_over) == (Prompt.OPEN, "qts", False)
    assert len(pressed(state, " ".join("x" * 2000)).typed) < 1000


def test_the_chosen_row_stays_chosen_when_rows_change() -> None:
    rows = ["a", "b", "c"]
    place = Place(Screen.QUEUES).moved(1, rows)

    assert place.row_of(rows) == 1
    assert place.row_of(["b", "a", "c"]) == 0
    assert place.row_of(["a", "c"]) == 1  # its neighbour
    assert place.row_of(["a"]) == 0
    assert place.row_of([]) == 0
    assert Place(Screen.QUEUES).moved(5, []).chosen is None


def test_space_and_characters_change_what_is_shown() -> None:
    state = State()
    assert state.after(" ", ShownRows()).is_stopped
    assert not state.after(" ", ShownRows()).after(" ", ShownRows()).is_stopped
    assert pressed(state, "s").sort is Sort.OVERDUE
    assert pressed(state, "s s s s s") == state
    assert [pressed(state, " ".join("c" * n)).step for n in range(4)] == [
        "minute", "hour", "day", "minute"
    ]  # fmt: skip
    assert pressed(state, "b").by == "task"


FILTERS = {
    "": {},
    "customer 77": {"argument": "customer 77"},
    "task=shop.mail": {"task": "shop.mail"},
    "task=shop.mail  due_to=1h  a  b ": {"task": "shop.mail", "due_to": "1h", "argument": "a  b"},
    "id=mail-7": {"id": "mail-7"},
    "queue=mail id=1": {"queue": "mail", "id": "1"},
    "x=1 y": {"argument": "x=1 y"},
    "task=": {"argument": "task="},
    "cursor=1": {"argument": "cursor=1"},
}


@pytest.mark.parametrize("filter", FILTERS)
def test_a_filter_of_tasks_has_fields_and_a_part_of_an_argument(filter: str) -> None:
    assert task_fields(filter) == FILTERS[filter]


def queue(name: str, **numbers: int) -> QueueRow:
    return QueueRow(**{"scheduled": 0, "held": 0, "ready": 0, "running": 0, "overdue": 0,
                       "dead": 0, "name": name, **numbers})  # type: ignore[arg-type]  # fmt: skip


def test_queues_are_filtered_and_sorted() -> None:
    rows = [
        queue("Mail", scheduled=5, dead=1),
        queue("mailbox", ready=7, overdue=0),
        queue("bills", scheduled=1, overdue=3, oldest_seconds=9),
    ]

    def names(sort: Sort, filter: str = "") -> list[str]:
        return [each.name for each in shown_queues(rows, sort, filter)]

    assert {sort: names(sort) for sort in Sort} == {
        Sort.TASKS: ["mailbox", "Mail", "bills"],
        Sort.OVERDUE: ["bills", "Mail", "mailbox"],
        Sort.OLDEST: ["bills", "Mail", "mailbox"],
        Sort.DEAD: ["Mail", "bills", "mailbox"],
        Sort.NAME: ["Mail", "bills", "mailbox"],
    }
    assert names(Sort.NAME, "MAIL") == ["Mail", "mailbox"]
    assert names(Sort.NAME, "none") == []
