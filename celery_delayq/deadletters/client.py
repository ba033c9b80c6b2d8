"""Public API of dead letters: iterate, get, count, replay and purge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import uuid4

from celery_delayq.deadletters.other_store import schedule_in_other_store
from celery_delayq.deadletters.reading import (
    MAX_SEARCHED,
    DeadLetterPlaces,
    DeadLetterSearch,
    Progress,
    found_pages,
    places_in_redis,
)
from celery_delayq.deadletters.replay import (
    ReplayChanges,
    due_of,
    make_replays,
    replay_entry,
)
from celery_delayq.errors import (
    ConfigError,
    InvalidFilter,
)
from celery_delayq.integration.app_warnings import warn_of_naive_eta
from celery_delayq.integration.not_run import note_purged
from celery_delayq.model.dead_letter import (
    DeadConditionFields,
    DeadFilter,
    DeadFilterFields,
    DeadLetter,
    DeadLetterCursor,
    DeadLetterRecord,
)
from celery_delayq.model.envelope import (
    Due,
    Record,
    policy_of_existing,
)
from celery_delayq.model.names import check_name, filter_of
from celery_delayq.model.scheduled import OUTCOMES, Bulk, Outcome, Page, check_page_limit, moment
from celery_delayq.model.script_values import StatusCode, to_bytes
from celery_delayq.schedule.update import changes_of, editor_of
from celery_delayq.store.dead_letters import (
    ChangedInPlace,
    DeadLetterStore,
    Replay,
    digest_of,
    read_codes,
)
from celery_delayq.store.keys import Layout
from celery_delayq.store.paging import queues_of
from celery_delayq.store.scripting.calls import Call
from celery_delayq.store.scripting.pipelining import PipelinedCalls
from celery_delayq.store.session import Session
from celery_delayq.store.stores import Stores
from celery_delayq.utils.delegation import methods_name_arguments
from celery_delayq.utils.numbers import is_finite
from celery_delayq.utils.portions import portions

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")

#: Dead letters that one script call changes.
CHANGE_BATCH = 40

_QUEUE: Callable[[DeadLetter], str] = attrgetter("queue")

#: A page of dead letters: first and last time of death (ms), the id of the dead letter after which
#: the page begins, and a token.
Place = tuple[float | str, float | str, bytes, str]

#: Changes a page of dead letters of a queue in one script call.
InPlace = Callable[[DeadLetterStore, str, Layout, Place], ChangedInPlace]


class Change(NamedTuple):
    """A change of dead letters; *call* changes the dead letters with the indexes *places*."""

    dead_letters: Sequence[DeadLetter]
    call: Call | None
    places: Sequence[int]
    #: Status codes that are known before the call, by the index of the dead letter.
    known: Mapping[int, StatusCode]
    after: Callable[[Sequence[DeadLetter]], None] | None = None

    def status_codes(self, reply: Any) -> Sequence[StatusCode]:
        """Return the status code of each dead letter from the reply."""
        status_codes: list[StatusCode] = ["x"] * len(self.dead_letters)
        for place, state in self.known.items():
            status_codes[place] = state
        for place, state in zip(self.places, read_codes(reply or b""), strict=True):
            status_codes[place] = state
        if self.after is not None:
            done = zip(self.dead_letters, status_codes, strict=True)
            self.after([dead_letter for dead_letter, state in done if state == "d"])
        return status_codes


@methods_name_arguments
class DeadLetters:
    """Dead letters: list, replay, purge. Called as ``delayq.dead_letters``."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ask = session.ask

    def __call__(
        self,
        filter: DeadFilter | None = None,
        *,
        progress: Progress | None = None,
        **fields: Unpack[DeadFilterFields],
    ) -> Iterator[DeadLetter]:
        """Return an iterator over dead letters, in the order of their deaths.

        Each dead letter appears once. A dead letter that is deleted meanwhile may be missing. A
        message that dies meanwhile is left out, also if it was replayed before.

        Parameters
        ----------
        filter : DeadFilter | None
            The dead letters to read; None for all.
        progress : Callable[[int | None, int], object] | None
            Called after each 100 dead letters that were read, whether they match or not: with the
            number to read (None if unknown), and the number read so far.
        **fields
            Fields of a :class:`~celery_delayq.model.dead_letter.DeadFilter`, in its place.

        Raises
        ------
        InvalidFilter, InvalidETA
            A field is invalid, or both a filter and fields are given.
        """
        filter = filter_of(DeadFilter, filter, fields, DeadLetters.__call__)
        return self._iterate(filter, progress=progress)

    def list(
        self,
        filter: DeadFilter | None = None,
        *,
        limit: int = 100,
        cursor: str | None = None,
        **fields: Unpack[DeadFilterFields],
    ) -> Page[DeadLetter]:
        """Return a page of dead letters, in the order of their deaths.

        Each dead letter appears once on all pages, as in ``delayq.dead_letters(…)``. A page ends
        after 10,000 dead letters read, or 4 MB of what was found. So a page with a cursor may have
        fewer dead letters than *limit*, or none.

        Parameters
        ----------
        filter, **fields
            The dead letters to list, as for ``delayq.dead_letters(…)``.
        limit : int
            Most dead letters of the page, 1 to 10,000.
        cursor : str | None
            ``Page.cursor`` of the previous page; None for the first page.

        Raises
        ------
        InvalidCursor
            The cursor is invalid, or belongs to another filter.
        InvalidFilter, InvalidETA
            A part of the filter is wrong.
        ValueError
            *limit* is not in its range.
        """
        check_page_limit(limit)
        filter = filter_of(DeadFilter, filter, fields, DeadLetters.list)
        return next(self.pages(filter, limit=limit, cursor=cursor, most_looked=MAX_SEARCHED))

    def pages(
        self, filter: DeadFilter, *, limit: int | None, cursor: str | None, most_looked: int
    ) -> Iterator[Page[DeadLetter]]:
        """Yield pages of dead letters, as :func:`.reading.found_pages` makes them."""
        after = DeadLetterCursor()
        if cursor is not None:
            after = DeadLetterCursor.unpack(cursor, filter)
        places, search = self._places(filter, after), DeadLetterSearch(self._session, filter)
        yield from found_pages(places, filter, search, limit=limit, most_looked=most_looked)

    def _iterate(
        self,
        filter: DeadFilter,
        *,
        ahead: bool = False,
        progress: Progress | None = None,
        search: DeadLetterSearch | None = None,
    ) -> Iterator[DeadLetter]:
        """Return an iterator over dead letters that match a filter.

        With *ahead*, if only one queue matches, pages are read ahead on a connection of their own.
        """
        places = self._places(filter, DeadLetterCursor(), ahead=ahead, progress=progress)
        found = (each for _, each in places.found)
        if filter.is_by_place:
            return found
        search = search or DeadLetterSearch(self._session, filter)
        return (each for each in found if search.selects(each))

    def _places(
        self,
        filter: DeadFilter,
        after: DeadLetterCursor,
        *,
        ahead: bool = False,
        progress: Progress | None = None,
    ) -> DeadLetterPlaces:
        """Return what :func:`.reading.places_in_redis` returns."""
        return places_in_redis(self._ask, filter, after, ahead=ahead, progress=progress)

    def get(
        self, id: str, *, queue: str | None = None, progress: Progress | None = None
    ) -> DeadLetter | None:
        """Return the dead letter with that id, or else the first one of a task with that id.

        The ids of a dead letter and its task differ if the task became a dead letter several times,
        or if its message had no readable id. The search by the task's id reads all dead letters.

        Parameters
        ----------
        progress : Callable[[int | None, int], object] | None
            Called while all dead letters are read, as for ``delayq.dead_letters(…)``.

        Returns
        -------
        DeadLetter | None
            None if no dead letter has either id.

        Raises
        ------
        InvalidFilter
            *id* is not a string.
        """
        if not isinstance(id, str):
            raise InvalidFilter(f"id={id!r}: expected the id of a dead letter")

        filter = DeadFilter(queue, task_id=id)
        return self._find_by_id(id, queue, progress) or next(
            self._iterate(filter, progress=progress), None
        )

    def _find_by_id(
        self,
        id: str,
        queue: str | None,
        progress: Progress | None,  # noqa: ARG002, for a subclass that reads all dead letters
    ) -> DeadLetter | None:
        def read(stores: Stores) -> DeadLetter | None:
            found = stores.run_each(
                queues_of(stores, queue),
                lambda store, name: store.dead_letters.read_steps(name, [to_bytes(id)]),
            )
            every = (DeadLetter.of(name, each) for name, some in found.items() for each in some)
            return next(every, None)

        return self._ask(read)

    def count(self, /, filter: DeadFilter | None = None, **fields: Unpack[DeadFilterFields]) -> int:
        """Return the number of dead letters that match a filter.

        The arguments are those of ``delayq.dead_letters(…)``. A filter with other fields than the
        queue and the times reads all dead letters.

        Raises
        ------
        InvalidFilter, InvalidETA
            A field is invalid, or both a filter and fields are given.
        """
        return self._count(filter_of(DeadFilter, filter, fields, DeadLetters.count))

    def _count(self, filter: DeadFilter, search: DeadLetterSearch | None = None) -> int:
        if not filter.is_by_place:
            return sum(1 for _ in self._iterate(filter, search=search))
        low, high = filter.range_ms()
        return sum(self._ask(lambda stores: counts_of(stores, filter.queue, low, high)).values())

    def replay(
        self,
        dead_letter: DeadLetter | str,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        priority: int | None = None,
        expires: float | datetime | str | bool | None = None,
        headers: Mapping[str, Any] | None = None,
        queue: str | None = None,
        eta: datetime | str | None = None,
        countdown: float | None = None,
        unpickle: bool = False,
    ) -> Outcome:
        """Run the task of a dead letter again, from its first attempt, and delete the dead letter.

        On Redis both happen in one step. On RabbitMQ, and on a Redis Cluster for a *queue* of
        another hash tag, two replays at the same time run the task twice. If its message is
        rewritten during a replay to another hash tag, the former message runs, and the dead letter
        with the new message stays (``CHANGED``).

        Parameters
        ----------
        dead_letter : DeadLetter | str
            A dead letter or its id.
        args, kwargs, priority, expires, headers, unpickle
            Changes of its message, as in :meth:`~celery_delayq.DelayQ.update`. Its unique key and
            its limit follow the new arguments.
        queue : str | None
            Another queue for the task and its retries.
        eta, countdown
            When the task is due; without either it runs at once.

        Returns
        -------
        Outcome
            ``DONE``; ``UNKNOWN`` if the dead letter does not exist any more; ``CHANGED`` if its
            message was rewritten since it was read, or another dead letter has its id now;
            ``CONFLICT`` if another task has its unique key; ``UNREADABLE`` if it is no task
            message, or its arguments cannot be decoded here.

        Raises
        ------
        ConfigError
            A change has a wrong type or cannot be encoded, or the task does not take the arguments.
        InvalidUnique, InvalidLimit
            The unique key or the key of the limit cannot be computed from the new arguments.
        InvalidFilter, InvalidETA
            *queue* is not a valid name; *eta* or *countdown* is not a time, or both are given.
        InvalidOption
            *priority* or *expires* is invalid.
        NoQueue, QueueFull, InvalidOption
            RabbitMQ refuses the message; the dead letter stays.
        """
        found = self._dead_letter(dead_letter)
        if found is None:
            return Outcome.UNKNOWN
        due = due_of(eta, countdown)
        warn_of_naive_eta(self._session.app, eta)
        changes = self._changes(
            queue,
            args=args,
            kwargs=kwargs,
            priority=priority,
            expires=expires,
            headers=headers,
            unpickle=unpickle,
        )
        change = self._replay_change(found.queue, [found], changes, [due], uuid4().hex)
        return self._make_change(found.queue, change)

    def replay_all(
        self,
        filter: DeadFilter | None = None,
        *,
        rate: float | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        priority: int | None = None,
        expires: float | datetime | str | bool | None = None,
        headers: Mapping[str, Any] | None = None,
        to_queue: str | None = None,
        unpickle: bool = False,
        dry_run: bool = False,
        everything: bool = False,
        progress: Callable[[Bulk], object] | None = None,
        **fields: Unpack[DeadConditionFields],
    ) -> Bulk:
        """Replay all dead letters that match a filter; in each queue in the order of their deaths.

        Parameters
        ----------
        filter, **fields
            The dead letters to replay, as for ``delayq.dead_letters(…)``. With a *filter*, *queue*
            means *to_queue*, as for :meth:`replay`.
        rate : float | None
            Tasks per second, 0.001 to 1,000,000: the tasks are scheduled with that distance, and
            this call does not wait for them. None: all tasks run at once.
        args, kwargs, priority, expires, headers, unpickle
            Changes of the messages, as for :meth:`replay`. With *arg*, *unpickle* is that of the
            filter too.
        to_queue : str | None
            The queue for the tasks; None for their own queues.
        dry_run : bool
            Only count the dead letters.
        everything : bool
            Required without a condition, which means all dead letters of all queues.
        progress : Callable[[Bulk], object]
            Called after each batch of at most 100.

        Raises
        ------
        ConfigError
            *rate* is not in its range, a change is wrong as for :meth:`replay`, or the filter
            matches everything and *everything* is not set.
        InvalidFilter
            The filter is invalid, or *to_queue* is not a valid name.
        """
        if filter is not None and to_queue is None:
            to_queue = fields.pop("queue", None)
        given: dict[str, Any] = {**fields}
        if unpickle and fields.get("arg") is not None:
            given["unpickle"] = True
        filter = filter_of(DeadFilter, filter, given, DeadLetters.replay_all)
        if rate is not None and not is_finite(rate, 0.001, 1e6):
            raise ConfigError(f"rate={rate!r}: expected dead letters a second, 0.001 to 1,000,000")
        changes = self._changes(
            to_queue,
            args=args,
            kwargs=kwargs,
            priority=priority,
            expires=expires,
            headers=headers,
            unpickle=unpickle,
        )
        start, run = self._session.now_ms(), uuid4().hex

        def change(name: str, dead_letters: Sequence[DeadLetter], before: int) -> Any:
            dues = [
                Due(0) if rate is None else Due(start + int((before + n) * 1000 / rate))
                for n in range(len(dead_letters))
            ]
            return self._replay_change(name, dead_letters, changes, dues, run)

        in_place = _replay_in_place if rate is None and changes == ReplayChanges() else None
        return self._change_all(filter, change, dry_run, everything, progress, in_place=in_place)

    def _changes(self, queue: str | None, **given: Any) -> ReplayChanges:
        """Return the changes of a replay; raises the errors of :meth:`replay`."""
        check_name("queue", queue)
        app = self._session.app
        changes = changes_of(app, **given)
        return ReplayChanges(None if changes.is_empty else editor_of(app, changes), queue)

    def _replay_change(
        self,
        queue: str,
        dead_letters: Sequence[DeadLetter],
        changes: ReplayChanges,
        dues: Sequence[Due],
        run: str,
    ) -> Any:
        """Return the change that replays dead letters of *queue* into one queue."""
        to, token = changes.queue or queue, uuid4().hex
        layout = self._ask(lambda stores: queues_of(stores, to)[to])

        def replay(place: int, dead_letter: DeadLetter, due: Due) -> Replay:
            # The message id differs in its first half, which is the part that scripts use.
            message_id = f"{place:04x}{token[4:]}"
            entry = replay_entry(dead_letter, layout, due, changes, message_id, run)
            # If another task has the unique key now, the replay is refused.
            if entry.policy:
                names = self._session.renames.all_names(Record.unpack(entry.data).task)
                entry = entry._replace(policy=policy_of_existing("error", names))
            record = dead_letter.dead_lettered
            return Replay(dead_letter.id, record.died_ms, entry, digest_of(record.data))

        replays = make_replays(dead_letters, dues, replay)
        call: Call | None = None
        known: dict[int, StatusCode] = {}
        if self._ask(lambda stores: stores.of(queue) is not stores.of(to)):
            replays, known = schedule_in_other_store(self._ask, queue, to, layout, replays, token)
            if replays:
                names = [(each.id, each.died_ms) for each in replays.values()]
                digests = [each.digest for each in replays.values()]
                call = self._ask(
                    lambda stores: stores.of(queue).dead_letters.delete_call(
                        queue, names, token, digests=digests
                    )
                )
        elif replays:
            found = [*replays.values()]
            call = self._ask(
                lambda stores: stores.of(queue).dead_letters.replay_call(
                    queue, to, layout, found, token
                )
            )
        return Change(dead_letters, call, [*replays], known)

    def purge(self, dead_letter: DeadLetter | str) -> Outcome:
        """Delete a dead letter. A chord that waits for its task fails.

        Returns
        -------
        Outcome
            ``DONE``; ``UNKNOWN`` if the dead letter does not exist any more; ``CHANGED`` if another
            dead letter has its id now.
        """
        found = self._dead_letter(dead_letter)
        if found is None:
            return Outcome.UNKNOWN
        return self._make_change(found.queue, self._purge_change(found.queue, [found]))

    def purge_all(
        self,
        filter: DeadFilter | None = None,
        *,
        dry_run: bool = False,
        everything: bool = False,
        progress: Callable[[Bulk], object] | None = None,
        **fields: Unpack[DeadFilterFields],
    ) -> Bulk:
        """Delete all dead letters that match a filter; parameters as for :meth:`replay_all`."""
        filter = filter_of(DeadFilter, filter, fields, DeadLetters.purge_all)
        return self._change_all(
            filter, self._purge_change, dry_run, everything, progress, in_place=_purge_in_place
        )

    def _purge_change(self, queue: str, dead_letters: Sequence[DeadLetter], _: int = 0) -> Any:
        """Return the change that deletes dead letters of one queue."""
        names = [(each.id, each.dead_lettered.died_ms) for each in dead_letters]
        token = uuid4().hex
        call = self._ask(
            lambda stores: stores.of(queue).dead_letters.delete_call(queue, names, token)
        )
        after = partial(note_purged, self._session.app)
        return Change(dead_letters, call, range(len(dead_letters)), {}, after)

    def _dead_letter(self, dead_letter: DeadLetter | str) -> DeadLetter | None:
        return dead_letter if isinstance(dead_letter, DeadLetter) else self.get(dead_letter)

    def _make_change(self, queue: str, change: Any) -> Outcome:
        """Make a change of one dead letter of a queue."""
        call = change.call
        reply = None if call is None else self._ask(lambda stores: stores.of(queue).run(call))
        return OUTCOMES[change.status_codes(reply)[0]]

    def _change_all(
        self,
        filter: DeadFilter,
        change: Callable[[str, Sequence[DeadLetter], int], Any],
        dry_run: bool,
        everything: bool,
        progress: Callable[[Bulk], object] | None,
        *,
        in_place: InPlace | None,
    ) -> Bulk:
        """Change the dead letters that match, in batches; messages that die meanwhile stay."""
        if filter.is_everything and not (everything or dry_run):
            raise ConfigError(
                "the filter leaves nothing out: give everything=True if all dead letters of all "
                "queues are meant"
            )
        bulk, search = Bulk(dry_run), DeadLetterSearch(self._session, filter)
        if dry_run:
            bulk.total = bulk.outcomes[Outcome.DONE] = self._count(filter, search)
            bulk.unknown = search.unknown
            return bulk
        if filter.died_to is None:
            # A task that is replayed and dies again must not be replayed again by this call.
            filter = replace(filter, died_to=moment(self._session.now_ms()))
        bulk.total = self._count(filter.by_place)
        self._change_matching(filter, search, change, bulk, progress, in_place=in_place)
        bulk.unknown = search.unknown
        return bulk

    def _change_matching(
        self,
        filter: DeadFilter,
        search: DeadLetterSearch,
        change: Callable[[str, Sequence[DeadLetter], int], Any],
        bulk: Bulk,
        progress: Callable[[Bulk], object] | None,
        *,
        in_place: InPlace | None,
    ) -> None:
        """Change the dead letters that match, and count the outcomes.

        With *in_place* scripts change most dead letters themselves, and *change* gets only the
        dead letters that :meth:`_change_in_place` yields.
        """
        number_read = 0

        def settle(made: Change, reply: Any) -> None:
            bulk.outcomes.update(OUTCOMES[state] for state in made.status_codes(reply))
            if progress is not None:
                progress(bulk)

        if in_place is not None and filter.is_by_place:
            dead_letters = self._change_in_place(filter, in_place, bulk, progress)
        else:
            dead_letters = self._iterate(filter, ahead=True, search=search)
        with PipelinedCalls(self._ask) as ahead:
            for batch in portions(
                dead_letters, CHANGE_BATCH, lambda dead_letter: len(dead_letter.dead_lettered.data)
            ):
                for queue, part in groupby(sorted(batch, key=_QUEUE), _QUEUE):
                    found = [*part]
                    made = change(queue, found, number_read)
                    number_read += len(found)
                    if made.call is None:
                        settle(made, None)
                    else:
                        ahead.send(queue, made.call, partial(settle, made))

    def _change_in_place(
        self,
        filter: DeadFilter,
        in_place: InPlace,
        bulk: Bulk,
        progress: Callable[[Bulk], object] | None,
    ) -> Iterator[DeadLetter]:
        """Change dead letters by queue and time; yield those that no script can change."""
        low, high = filter.range_ms()
        layouts = self._ask(lambda stores: queues_of(stores, filter.queue))
        counts = self._ask(lambda stores: counts_of(stores, filter.queue, low, high))
        for queue, layout in layouts.items():
            if not counts.get(queue):
                continue
            first: float | str = "-inf" if low is None else low
            last: float | str = "+inf" if high is None else high
            after = b""
            more = True
            while more:
                place = (first, last, after, uuid4().hex)
                found, remaining = self._ask(partial(_change_page, in_place, queue, layout, place))
                if found.number:
                    bulk.outcomes[Outcome.DONE] += found.number
                    if progress is not None:
                        progress(bulk)
                for record in remaining:
                    yield DeadLetter.of(queue, record)
                if found.last_died != first:
                    after = b""
                for id, died in found.unread:
                    after = id if died == found.last_died else after
                first, more = found.last_died, found.has_more


def _replay_in_place(
    dead_letters: DeadLetterStore, queue: str, layout: Layout, place: Place
) -> ChangedInPlace:
    return dead_letters.replay_in_place(queue, layout, *place)


def _purge_in_place(
    dead_letters: DeadLetterStore, queue: str, _: Layout, place: Place
) -> ChangedInPlace:
    return dead_letters.purge_in_place(queue, *place)


def _change_page(
    in_place: InPlace, queue: str, layout: Layout, place: Place, stores: Stores
) -> tuple[ChangedInPlace, Sequence[DeadLetterRecord]]:
    """Change a page in one call; return its result, and the dead letters that it did not change."""
    dead_letters = stores.of(queue).dead_letters
    found = in_place(dead_letters, queue, layout, place)
    return found, dead_letters.read(queue, [id for id, _ in found.unread]) if found.unread else []


def counts_of(
    stores: Stores,
    queue: str | None = None,
    low: int | None = None,
    high: int | None = None,
    *,
    archived: bool = False,
) -> dict[str, int]:
    """Return the number of dead letters of each queue, or of one, with a death in a time (ms).

    With *archived*, only queues whose consumers have an archive are counted.
    """
    known = queues_of(stores, queue).items()
    return stores.run_each(
        [name for name, layout in known if layout.limits.archived or not archived],
        lambda store, name: store.dead_letters.count_steps(name, low, high),
    )
