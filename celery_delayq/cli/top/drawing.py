"""Makes the lines of ``top``. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TypeVar

from rich.text import Text

from celery_delayq.charts.scales import duration, layers_of
from celery_delayq.charts.terminal import Area, sparklines
from celery_delayq.cli.lines import Column, Paper
from celery_delayq.cli.text import number_of, stamp
from celery_delayq.cli.top.frame import LATENESS_MINUTES, Frame
from celery_delayq.cli.top.state import (
    KEYS,
    Place,
    ShownRows,
    Sort,
    State,
    has_part,
    shown_queues,
)
from celery_delayq.limits.client import LimitStatus
from celery_delayq.utils.text import distance, shortened, span, spelled
from celery_delayq.web.pages.fleet import Fleet, Process
from celery_delayq.web.pages.overview import Overview, QueueRow
from celery_delayq.web.pages.scheduled import Row, Scheduled
from celery_delayq.web.pages.task import TaskPage

T = TypeVar("T")

#: Columns of the name beside a sparkline, most columns of a sparkline, and most lines of them.
NAME_WIDTH, MAX_SPARK_WIDTH, MAX_SPARKS = 14, 60, 3

#: Queues get at least 1 / _QUEUES_PART of the lines.
_QUEUES_PART = 2

#: Seconds of clock skew from which it is a warning.
_MUCH_SKEW_SECONDS = 1.0

#: Most characters of a value, and of a traceback, of which the end counts most.
_MAX_VALUE, _MAX_TRACEBACK = 2000, 20_000

_WARN, _BAD, _DIM, _CHOSEN = "yellow", "bold red", "dim", "reverse"

_STATE_STYLES = {"dead": _BAD, "held": _WARN, "paused": _WARN, "revoked": _WARN}


@dataclass(frozen=True)
class Status:
    """What the first line says beside the frame.

    Attributes
    ----------
    broker : str
        The address of the broker, without its password.
    interval : float
        Seconds between two looks; 0 for a single one.
    error : str
        Why the last look failed; ``""`` if it did not.
    silent_seconds, age_seconds : float
        For how long an answer has been missing, and how old the frame is.
    """

    broker: str
    interval: float = 0
    error: str = ""
    silent_seconds: float = 0
    age_seconds: float = 0


#: Seconds without an answer from which the first line says so.
SILENT_SECONDS = 2.0


@dataclass(frozen=True)
class DrawnFrame:
    """The lines of a frame, and what keys depend on."""

    lines: list[Text]
    shown: ShownRows


def draw(
    state: State, frame: Frame | None, status: Status, paper: Paper, height: int | None = None
) -> DrawnFrame:
    """Return the lines of a frame.

    Parameters
    ----------
    frame : Frame | None
        What was read; None before the first answer.
    height : int | None
        Lines of the screen; None for all lines, and without those about keys.
    """
    head = [*paper.flow(_status_parts(state, frame, status))]
    if status.error:
        head += [_styled(line, _BAD) for line in paper.folded(status.error)]
    foot = [] if height is None else [_foot(state, paper)]
    room = None if height is None else max(1, height - len(head) - len(foot))
    body = _body(state, frame, paper, room)
    lines = body.lines
    if room is not None:
        lines = [*lines[:room], *(Text() for _ in range(room - len(lines)))]
    head = head if room is None else head[: max(0, (height or 0) - len(foot) - room)]
    return DrawnFrame([paper.cut(line) for line in (*head, *lines, *foot)][:height], body.shown)


def _body(state: State, frame: Frame | None, paper: Paper, room: int | None) -> DrawnFrame:
    if frame is None:
        return DrawnFrame([], ShownRows())
    if frame.overview is not None:
        return _Queues(state, frame, frame.overview, paper).drawn(room)
    if frame.tasks is not None:
        return _tasks(state.place, frame.tasks, paper, room)
    if frame.task is not None:
        lines = [*_task(frame.task, paper)]
        height = len(lines) if room is None else room
        rows = [""] * max(1, len(lines) - height + 1)
        return DrawnFrame(lines[state.place.row_of(rows) :], ShownRows(rows, height))
    return DrawnFrame([], ShownRows())


def _status_parts(state: State, frame: Frame | None, status: Status) -> Iterator[Text]:
    yield Text("delayq top", "bold")
    yield Text(spelled(status.broker))
    if frame is not None and frame.now is not None:
        yield Text(stamp(frame.now.replace(microsecond=0)))
    if state.is_stopped:
        yield Text("stopped", _WARN)
    elif status.interval:
        yield Text(f"every {status.interval:g} s", _DIM)
    if status.silent_seconds >= SILENT_SECONDS:
        yield Text(f"no answer for {span(status.silent_seconds)}", _BAD)
    if frame is not None and (status.error or status.silent_seconds >= SILENT_SECONDS):
        yield Text(f"shown: {span(status.age_seconds)} old", _WARN)


def _foot(state: State, paper: Paper) -> Text:
    """Return the last line: what is being typed, or what keys do."""
    if state.prompt is not None:
        title = Text(f"{state.prompt.value}: ", "bold")
        room = max(1, paper.width - len(title.plain) - 1)
        return paper.cut(title.append(f"{spelled(state.typed[-room:])}_", "default"))
    line = Text()
    for key, action in KEYS[state.place.screen]:
        part = Text("  " if line else "").append(key, "bold").append(f" {action}")
        if len(line.plain) + len(part.plain) <= paper.width:
            line = line + part
    return line


def _styled(line: Text, style: str) -> Text:
    line.stylize(style)
    return line


def _number(value: float | None, style: str = "") -> Text:
    """Return a number, in a style unless it is 0; a dash if it is unknown."""
    if value is None:
        return Text("-")
    return Text(f"{value:,}" if isinstance(value, int) else f"{value:,.1f}", style if value else "")


def _facts(pairs: Iterable[tuple[str, Text | None]]) -> Iterator[Text]:
    """Yield names with their values, without those that are unknown."""
    for name, value in pairs:
        if value is not None:
            yield Text(f"{name} ", _DIM) + value


def _table(
    paper: Paper, columns: Sequence[Column[T]], rows: Sequence[T], chosen: int, room: int
) -> list[Text]:
    """Return the titles and as many rows as there is room for, the chosen one among them."""
    start = max(0, min(chosen - room // 2, len(rows) - room))
    lines = paper.table(columns, rows[start : start + room])
    if rows:
        lines[1 + chosen - start].stylize(_CHOSEN)
    return lines


class _Queues:
    """The screen of the queues."""

    def __init__(self, state: State, frame: Frame, view: Overview, paper: Paper) -> None:
        self._state, self._frame, self._view, self._paper = state, frame, view, paper
        self._queues = shown_queues(view.queues, state.sort, state.place.filter)

    def drawn(self, room: int | None) -> DrawnFrame:
        """Return the lines, of which the table of queues gets at least half."""
        top = [*self._top()]
        rest = [*self._below()]
        names = [each.name for each in self._queues]
        if room is None:
            table = self._paper.table(self._columns(), self._queues)
            return DrawnFrame([*top, *self._title(), *table, *rest], ShownRows(names))
        top = top[: max(1, room // 3)]
        left = max(2, room - len(top) - len(self._title()))
        most = max(left // _QUEUES_PART, left - len(rest), 2)
        chosen = self._state.place.row_of(names)
        table = _table(self._paper, self._columns(), self._queues, chosen, most - 1)
        page = [*top, *self._title(), *table, *rest]
        if len(page) > room:
            page = [*page[: room - 1], Text(f"{len(page) - room + 1:,} more lines", _DIM)]
        return DrawnFrame(page, ShownRows(names, max(1, most - 1)))

    def _top(self) -> Iterator[Text]:
        total, view, now = self._view.total, self._view, self._view.now
        late = self._frame.late
        shown_late, of_runs = None, None
        if late is not None and late.runs:
            shown_late = Text(f"p50 {duration(late.p50)}, p99 {duration(late.p99)}")
            runs = number_of(late.runs, "run", "runs")
            cut = "the newest " if self._frame.is_late_cut else ""
            of_runs = Text(f"{cut}{runs} in {LATENESS_MINUTES} min")
        next_due = None
        if total.next_due is not None:
            next_due = Text(distance((total.next_due - now).total_seconds()))
        yield from self._paper.flow(
            _facts(
                (
                    ("scheduled", _number(total.scheduled)),
                    ("held", None if total.held is None else _number(total.held, _WARN)),
                    ("ready", _number(total.ready)),
                    ("running", None if total.running is None else _number(total.running)),
                    ("overdue", None if total.overdue is None else _number(total.overdue, _BAD)),
                    ("dead", _number(total.dead, _BAD)),
                    ("oldest", None if total.oldest_seconds is None
                     else Text(span(total.oldest_seconds))),
                    ("in/min", None if total.rate_in is None else _number(total.rate_in)),
                    ("out/min", None if total.rate_out is None else _number(total.rate_out)),
                    ("next due", next_due),
                    ("late", shown_late),
                    ("of", of_runs),
                )
            )
        )  # fmt: skip
        if view.note:
            yield from self._paper.folded(view.note)
        for name, why in view.broken.items():
            yield from (
                _styled(line, _BAD)
                for line in self._paper.folded(f"not counted: {shortened(name, 80)}: {why}")
            )
        if view.load is not None:
            yield from self._load()

    def _load(self) -> Iterator[Text]:
        load = self._view.load
        if load is None:
            return
        layers = layers_of(load.counts, load.others)
        number = f"{load.total:,} due in {len(load.times)} {self._view.step}s"
        later = f", {load.later:,} later"
        yield self._paper.cut(Text(number + later, _DIM))
        width = min(MAX_SPARK_WIDTH, max(1, self._paper.width - NAME_WIDTH - 1))
        area = Area(width, ascii_only=self._paper.ascii_only)
        for layer, line in [*zip(layers, sparklines(layers, area), strict=True)][:MAX_SPARKS]:
            name = self._paper.cut(layer.name, NAME_WIDTH)
            name.pad_right(NAME_WIDTH + 1 - name.cell_len)
            yield name + line

    def _title(self) -> list[Text]:
        """Return the line of the filter, if there is one."""
        filter = self._state.place.filter
        if not filter:
            return []
        return [self._paper.cut(Text("filter ", _DIM) + Text(shortened(filter, 80)))]

    def _columns(self) -> list[Column[QueueRow]]:
        now = self._view.now
        has_rates = any(each.rate_in is not None for each in self._view.queues)

        def title(text: str, sort: Sort) -> str:
            return f"{text}v" if sort is self._state.sort else text

        def due(queue: QueueRow) -> str:
            if queue.next_due is None:
                return "-"
            seconds = (queue.next_due - now).total_seconds()
            return span(seconds) if seconds >= 0.5 else "now"

        def name(queue: QueueRow) -> Text:
            style = _WARN if queue.is_paused else ""
            return Text(shortened(queue.name, 80, self._paper.mark), style)

        number = partial(Column[QueueRow], is_number=True)
        columns = [
            Column(title("queue", Sort.NAME), name, 0, 8),
            number("sched", lambda each: _number(each.scheduled), 0),
            number("held", lambda each: _number(each.held, _WARN), 4),
            number("ready", lambda each: _number(each.ready), 1),
            number("run", lambda each: _number(each.running), 2),
            number(title("over", Sort.OVERDUE), lambda each: _number(each.overdue, _BAD), 1),
            number(title("dead", Sort.DEAD), lambda each: _number(each.dead, _BAD), 3),
            number(title("oldest", Sort.OLDEST), lambda each: _seconds(each.oldest_seconds), 5),
            number("next", due, 6),
        ]
        if any(each.is_paused for each in self._queues):
            columns.insert(1, Column("", lambda each: "paused" if each.is_paused else "", 5))
        if has_rates:
            columns[-1:-1] = [
                number("in/min", lambda each: _number(each.rate_in), 7),
                number("out/min", lambda each: _number(each.rate_out), 7),
            ]
        return columns

    def _below(self) -> Iterator[Text]:
        """Yield the lines about pauses, limits and processes."""
        paper, view, filter = self._paper, self._view, self._state.place.filter
        if not self._view.queues:
            yield Text("No queue is known yet.", _DIM)
        elif not self._queues:
            yield Text("No queue has that in its name.", _DIM)
        for kind, names in (("queue", view.paused.queues), ("task", view.paused.tasks)):
            for name, since in names.items():
                if has_part(name, filter):
                    yield paper.cut(
                        Text(f"paused {kind} ", _WARN)
                        + Text(f"{shortened(name, 80, paper.mark)}, {_ago(since, view.now)}")
                    )
        limits = [each for each in view.limits if has_part(each.name, filter)]
        if limits:
            yield Text()
            yield from paper.table(_limit_columns(paper), limits)
        if self._frame.fleet is not None:
            yield from _fleet(self._frame.fleet, paper)


def _seconds(value: float | None) -> str:
    return "-" if value is None else span(value)


def _ago(time: datetime, now: datetime) -> str:
    return distance((time - now).total_seconds())


def _limit_columns(paper: Paper) -> list[Column[LimitStatus]]:
    def name(limit: LimitStatus) -> Text:
        shown = Text(shortened(limit.name, 80, paper.mark))
        return shown.append(" off", _WARN) if limit.is_off else shown

    def definition(limit: LimitStatus) -> str:
        return str(limit.definition) if limit.definition else "-"

    number = partial(Column[LimitStatus], is_number=True)
    return [
        Column("limit", name, 0, 8),
        number("held", lambda each: _number(each.held, _WARN), 0),
        number("used", lambda each: _number(each.used), 1),
        number("lanes", lambda each: _number(each.lanes), 3),
        Column("what counts", definition, 2, 10),
    ]


def _fleet(fleet: Fleet, paper: Paper) -> Iterator[Text]:
    """Yield lines about dispatchers, and a table of processes."""
    for shard in fleet.shards:
        yield Text()
        where = f"{shortened(shard.tag, 40, paper.mark)}: " if len(fleet.shards) > 1 else ""
        number = shard.dispatchers
        parts = [
            Text(f"{where}dispatchers ", _DIM)
            + (Text("0", _BAD) if number == 0 else _number(number)),
            Text("on duty ", _DIM) + Text(shortened(shard.on_duty, 80, paper.mark) or "nobody"),
        ]
        if shard.last_call is not None:
            parts.append(Text("last call ", _DIM) + Text(_ago(shard.last_call, fleet.now)))
        style = _WARN if abs(shard.skew) > _MUCH_SKEW_SECONDS else ""
        parts.append(Text("clock skew ", _DIM) + Text(f"{shard.skew:.3f} s", style))
        yield from paper.flow(parts)
    if not fleet.processes:
        return

    def queues(process: Process) -> str:
        found = (f"{shortened(name, 40)} {number:,}" for name, number in process.queues.items())
        return ", ".join(found)

    def lease(process: Process) -> Text:
        text = f"{span(process.ends)}{'' if process.ends > 0 else ' ago'}"
        return Text(text, "" if process.ends > 0 else _BAD)

    yield from paper.table(
        [
            Column("process", lambda each: each.worker_id, 0, 8),
            Column("messages", lambda each: _number(each.messages), 0, is_number=True),
            Column("lease ends", lease, 1, is_number=True),
            Column("queues", queues, 2, 8),
        ],
        fleet.processes,
    )
    if fleet.more_processes:
        yield Text(f"{fleet.more_processes:,} more processes have fewer messages.", _DIM)


def _tasks(place: Place, view: Scheduled, paper: Paper, room: int | None) -> DrawnFrame:
    """Return the screen of scheduled tasks."""
    where = f"queue {shortened(place.name, 80, paper.mark)}" if place.name else "all queues"
    count = f"{len(view.rows):,} of {view.total:,} scheduled"
    if view.is_search:
        count = f"{len(view.rows):,} found, searched {view.looked:,} of {view.total:,}"
    head = [*paper.flow([Text(where, "bold"), Text(count)])]
    if place.filter:
        head += paper.flow([Text("filter ", _DIM) + Text(shortened(place.filter, 200))])
    columns = [
        Column("due", lambda row: _due(row, view.now), 0),
        Column("task", lambda row: row.task.task, 0, 10),
        Column("state", _state, 3),
        Column("id", lambda row: row.task.id, 1, 8),
        Column("queue", lambda row: row.task.queue, 4, 8),
        Column("arguments", _arguments, 5, 12),
    ]
    ids = [row.task.id for row in view.rows]
    nothing = "Nothing matches." if place.filter else "Nothing is scheduled here."
    end = [Text(nothing, _DIM)] if not ids and view.cursor is None else []
    if view.cursor is not None:
        end = [Text("n shows the next ones.", _DIM)] if ids else [Text("searching", _DIM)]
    most = len(ids) if room is None else max(1, room - len(head) - len(end) - 1)
    table = _table(paper, columns, view.rows, place.row_of(ids), most)
    return DrawnFrame([*head, *table, *end], ShownRows(ids, most, view.cursor, view.looked))


def _due(row: Row, now: datetime) -> Text:
    late = row.task.due < now and row.task.state == "scheduled"
    return Text(distance((row.task.due - now).total_seconds()), _BAD if late else "")


def _state(row: Row) -> Text:
    return Text(row.task.state, _STATE_STYLES.get(row.task.state, ""))


def _arguments(row: Row) -> str:
    return " ".join(filter(None, (row.texts.args, row.texts.kwargs)))


def _task(view: TaskPage, paper: Paper) -> Iterator[Text]:
    """Yield the lines of one task: why it waits or how it ended, and all that is known."""
    name = shortened(view.why.task or "A task", 200, paper.mark)
    yield from (_styled(line, "bold") for line in paper.folded(name))
    yield from paper.folded(view.id, most=1000)
    style = _STATE_STYLES.get(view.why.state, "green")
    yield Text(view.why.state, style)
    for answer in (view.why, *view.why.others):
        for reason in answer.reasons:
            yield from paper.folded(reason.sentence(stamp))
    yield Text()
    yield from _task_facts(view, paper)
    if view.events:
        yield Text()
        yield Text("timeline", "bold")
        for at, event in view.events:
            when = f"{stamp(at)}  {shortened(event, 400, paper.mark)}"
            yield from (_styled(line, _DIM if at > view.now else "") for line in paper.folded(when))
    if view.canvas is not None:
        yield Text()
        yield Text("canvas", "bold")
        for level, node in view.canvas.rows():
            text = " ".join(filter(None, (node.role, node.name, node.id if level else "")))
            yield paper.cut(Text("  " * level + shortened(text, 200, paper.mark)))
    if view.texts is not None and view.texts.traceback:
        yield Text()
        yield Text("traceback", "bold")
        for line in view.texts.traceback[-_MAX_TRACEBACK:].splitlines():
            yield from paper.folded(line)


def _task_facts(view: TaskPage, paper: Paper) -> Iterator[Text]:
    entry = view.entry.task if view.entry is not None else None
    pairs: list[tuple[str, str | None]] = [
        ("queue", view.why.queue),
        ("due", None if view.why.due is None
         else f"{stamp(view.why.due)}, {_ago(view.why.due, view.now)}"),
    ]  # fmt: skip
    if entry is not None:
        limit = f"{entry.limit}, key {entry.limit_key}" if entry.limit_key else entry.limit
        pairs += [
            ("worker", entry.worker or None),
            ("priority", None if entry.priority is None else str(entry.priority)),
            ("unique key", entry.unique_key or None),
            ("limit", limit or None),
        ]
    pairs += [(title.lower(), text) for title, text in view.facts]
    if view.texts is not None:
        pairs += [("arguments", view.texts.args), ("keywords", view.texts.kwargs)]
        pairs += [("error", view.texts.error)]
    pairs += [(f"context {name}", text) for name, text in view.context.items()]
    for title, value in pairs:
        if value is None:
            continue
        yield from paper.folded(f"{shortened(title, 40)}: {value[:_MAX_VALUE]}")
