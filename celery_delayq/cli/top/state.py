"""What ``top`` shows, and how keys change it. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from celery_delayq.web.pages.overview import STEPS, QueueRow
from celery_delayq.web.pages.scheduled import FIELDS

#: Longest text that can be typed.
MAX_TYPED = 400


class Screen(str, Enum):
    """What fills the terminal.

    ``QUEUES`` → ``TASKS`` (Enter: of the queue; t: of all queues) → ``TASK`` (Enter), and from each
    screen to ``TASK`` (o). Escape leads back to the screen before.
    """

    QUEUES = "queues"
    TASKS = "tasks"
    TASK = "task"


class Prompt(Enum):
    """A line that is being typed; the value is its title."""

    FILTER = "filter"
    OPEN = "id of a task"


class Sort(Enum):
    """The order of queues."""

    TASKS = "tasks"
    OVERDUE = "overdue"
    OLDEST = "oldest"
    DEAD = "dead"
    NAME = "name"

    def of(self, queue: QueueRow) -> Any:
        """Return the key of a queue in this order."""
        numbers: Mapping[Sort, float | None] = {
            Sort.TASKS: queue.weight,
            Sort.OVERDUE: queue.overdue,
            Sort.OLDEST: queue.oldest_seconds,
            Sort.DEAD: queue.dead,
        }
        return -(numbers.get(self) or 0), queue.name


@dataclass(frozen=True)
class Place:
    """A screen, and where the reader is on it.

    Attributes
    ----------
    name : str
        The queue of ``TASKS``, ``""`` for all queues; the id of ``TASK``.
    filter : str
        What the reader has typed to see less.
    chosen : str | None
        The name or id of the chosen row; None for the first one.
    at : int
        The number of that row, or of the first line that is shown, from 0.
    cursor, looked : str | None, int
        Where the page of tasks begins, and how many tasks a search had read before.
    began : tuple[str | None, int] | None
        The two of the page on which a search began; None as long as the search is there.
    """

    screen: Screen
    name: str = ""
    filter: str = ""
    chosen: str | None = None
    at: int = 0
    cursor: str | None = None
    looked: int = 0
    began: tuple[str | None, int] | None = None

    def row_of(self, rows: Sequence[str]) -> int:
        """Return the number of the chosen row: of its neighbour if it is gone."""
        if self.chosen in rows and (self.at >= len(rows) or rows[self.at] != self.chosen):
            return rows.index(self.chosen)
        return max(0, min(self.at, len(rows) - 1))

    def moved(self, number: int, rows: Sequence[str]) -> Place:
        """Return the place after a move by a number of rows."""
        at = max(0, min(self.row_of(rows) + number, len(rows) - 1))
        return replace(self, at=at, chosen=rows[at] if rows else None)


@dataclass(frozen=True)
class ShownRows:
    """What is on the screen, as far as keys depend on it.

    Attributes
    ----------
    rows : Sequence[str]
        The names or ids of all rows, also of the ones that do not fit; empty texts for mere lines.
    page : int
        Number of rows that fit.
    cursor, looked : str | None, int
        Where the next page of tasks begins, and how many tasks a search has read.
    """

    rows: Sequence[str] = ()
    page: int = 10
    cursor: str | None = None
    looked: int = 0


@dataclass(frozen=True)
class State:
    """All that keys have changed.

    Attributes
    ----------
    places : tuple[Place, ...]
        The screens that led here; the last one is shown.
    prompt, typed : Prompt | None, str
        The line that is being typed; None if keys are commands.
    is_stopped : bool
        Whether nothing is read again.
    is_over : bool
        Whether the reader has quit.
    """

    places: tuple[Place, ...] = (Place(Screen.QUEUES),)
    sort: Sort = Sort.TASKS
    step: str = "minute"
    by: str = "queue"
    prompt: Prompt | None = None
    typed: str = ""
    is_stopped: bool = False
    is_over: bool = False

    @property
    def place(self) -> Place:
        """The place that is shown."""
        return self.places[-1]

    def after(self, key: str, shown: ShownRows) -> State:
        """Return the state after a key. Keys without a meaning change nothing."""
        if self.prompt is not None:
            return self._typing(self.prompt, key)
        moves = _MOVES.get(key)
        if moves is not None:
            return self._at(self.place.moved(moves(shown), shown.rows))
        act = _COMMANDS.get(key)
        return self if act is None else act(self, shown)

    def searching_on(self, shown: ShownRows) -> State:
        """Return the state in which a search that has found nothing goes on with the next tasks."""
        began = self.place.began or (self.place.cursor, self.place.looked)
        return self._at(replace(self.place, cursor=shown.cursor, looked=shown.looked, began=began))

    def searching_again(self) -> State:
        """Return the state in which a search is where it began."""
        if self.place.began is None:
            return self
        cursor, looked = self.place.began
        return self._at(replace(self.place, cursor=cursor, looked=looked, began=None))

    def _at(self, place: Place) -> State:
        return replace(self, places=(*self.places[:-1], place))

    def _into(self, place: Place) -> State:
        return replace(self, places=(*self.places, place))

    def _typing(self, prompt: Prompt, key: str) -> State:
        done = replace(self, prompt=None, typed="")
        if key == "escape":
            return done
        if key == "backspace":
            return replace(self, typed=self.typed[:-1])
        if key != "enter":
            is_text = len(key) == 1 and len(self.typed) < MAX_TYPED
            return replace(self, typed=self.typed + key) if is_text else self
        text = self.typed.strip()
        if prompt is Prompt.OPEN:
            return done._into(Place(Screen.TASK, text)) if text else done
        return done._at(Place(self.place.screen, self.place.name, text))

    def _enter(self, shown: ShownRows) -> State:
        if not shown.rows or self.place.screen is Screen.TASK:
            return self
        name = shown.rows[self.place.row_of(shown.rows)]
        next_screen = Screen.TASKS if self.place.screen is Screen.QUEUES else Screen.TASK
        at_row = self._at(self.place.moved(0, shown.rows))
        return at_row._into(Place(next_screen, name)) if name else self

    def _back(self, _: ShownRows) -> State:
        if self.place.filter:
            return self._at(Place(self.place.screen, self.place.name))
        return replace(self, places=self.places[:-1]) if len(self.places) > 1 else self

    def _filter(self, _: ShownRows) -> State:
        if self.place.screen is Screen.TASK:
            return self
        return replace(self, prompt=Prompt.FILTER, typed=self.place.filter)

    def _all_tasks(self, _: ShownRows) -> State:
        return self._into(Place(Screen.TASKS)) if self.place.screen is Screen.QUEUES else self

    def _next_page(self, shown: ShownRows) -> State:
        if self.place.screen is not Screen.TASKS or shown.cursor is None:
            return self
        its = self.place
        place = Place(its.screen, its.name, its.filter, cursor=shown.cursor, looked=shown.looked)
        return self._into(place)

    def _next_of(self, name: str, values: Sequence[Any]) -> State:
        place = (values.index(getattr(self, name)) + 1) % len(values)
        changed: dict[str, Any] = {name: values[place]}
        return replace(self, **changed)


#: By how many rows a key moves.
_MOVES: Mapping[str, Callable[[ShownRows], int]] = {
    "up": lambda _: -1,
    "k": lambda _: -1,
    "down": lambda _: 1,
    "j": lambda _: 1,
    "page up": lambda shown: -shown.page,
    "page down": lambda shown: shown.page,
    "home": lambda shown: -len(shown.rows),
    "end": lambda shown: len(shown.rows),
}

#: What a key does.
_COMMANDS: Mapping[str, Callable[[State, ShownRows], State]] = {
    "q": lambda state, _: replace(state, is_over=True),
    " ": lambda state, _: replace(state, is_stopped=not state.is_stopped),
    "enter": State._enter,
    "escape": State._back,
    "backspace": State._back,
    "/": State._filter,
    "o": lambda state, _: replace(state, prompt=Prompt.OPEN, typed=""),
    "t": State._all_tasks,
    "n": State._next_page,
    "s": lambda state, _: state._next_of("sort", [*Sort]),
    "c": lambda state, _: state._next_of("step", [*STEPS]),
    "b": lambda state, _: state._next_of("by", ["queue", "task"]),
}

#: The keys of each screen and what they do, for its last line.
KEYS: Mapping[Screen, Sequence[tuple[str, str]]] = {
    Screen.QUEUES: (
        *(
            ("q", "quit"),
            ("space", "stop"),
            ("/", "filter"),
            ("enter", "tasks"),
            ("t", "all tasks"),
        ),
        *(("o", "open id"), ("s", "sort"), ("c", "chart"), ("b", "by")),
    ),
    Screen.TASKS: (
        *(("q", "quit"), ("space", "stop"), ("/", "filter"), ("enter", "open"), ("n", "next")),
        *(("o", "open id"), ("esc", "back")),
    ),
    Screen.TASK: (("q", "quit"), ("space", "stop"), ("o", "open id"), ("esc", "back")),
}

#: The fields that a filter of tasks may name.
_TASK_FIELDS = (*FIELDS, "id")


def task_fields(filter: str) -> dict[str, str]:
    """Return the fields of the page "Scheduled" for a filter that was typed.

    A word such as ``task=shop.mail`` or ``due_to=1h`` is a field. The other words are a part of an
    argument.
    """
    fields: dict[str, str] = {}
    others: list[str] = []
    for word in filter.split(" "):
        name, equals, value = word.partition("=")
        if equals and value and name in _TASK_FIELDS:
            fields[name] = value
        else:
            others.append(word)
    argument = " ".join(others).strip()
    return {**fields, "argument": argument} if argument else fields


def shown_queues(queues: Sequence[QueueRow], sort: Sort, filter: str) -> list[QueueRow]:
    """Return the queues that have the filter in their names, in order."""
    return sorted((each for each in queues if has_part(each.name, filter)), key=sort.of)


def has_part(name: str, filter: str) -> bool:
    """Return whether a name is shown with a filter."""
    return filter.lower() in name.lower()
