"""The stores of a broker: one for a single Redis, or one for each hash tag of a Redis Cluster."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any, TypeVar

from celery_delayq.errors import BrokerUnavailable, NotSupported
from celery_delayq.model.canvas import Canvas
from celery_delayq.model.cluster_tags import tag_of
from celery_delayq.model.history import id_field, place_of
from celery_delayq.model.script_values import Location, PausedNames
from celery_delayq.store.history import HistoryStore
from celery_delayq.store.scripting.calls import Steps
from celery_delayq.store.scripting.replies import answered
from celery_delayq.store.scripting.runner import MAX_PIPELINED_QUEUES
from celery_delayq.store.store import Store
from celery_delayq.store.task_limits import StoredLimit

T = TypeVar("T")

#: Runs of a history that are read at once.
PAGE_RUNS = 1000


class Stores:
    """A store for each hash tag, with the tag's queues. A single Redis has one store.

    Each store has its own next-due index, registry, lease time, pauses, history and counters.

    Parameters
    ----------
    stores : Mapping[str, Store]
        Stores by tag. The tag of a single Redis is ``""``.
    """

    def __init__(self, stores: Mapping[str, Store]) -> None:
        self._stores = stores
        self._tags = tuple(stores)

    @classmethod
    def single(cls, store: Store) -> Stores:
        """Return the stores of a single Redis: *store* only."""
        return cls({"": store})

    def of(self, queue: str) -> Store:
        """Return the store of a queue."""
        return self._stores[tag_of(queue, self._tags)]

    def by_tag(self) -> Iterable[tuple[str, Store]]:
        """Return all stores with their tags, in the order of their slots."""
        return self._stores.items()

    def own(self, store: Store, queues: Iterable[str]) -> frozenset[str]:
        """Return the queues of *queues* that belong to a store."""
        return frozenset(queue for queue in queues if self._find(queue) is store)

    def without(self, tags: Collection[str]) -> Stores:
        """Return the stores without those of *tags*. Each queue keeps its tag."""
        found = Stores({tag: store for tag, store in self.by_tag() if tag not in tags})
        found._tags = self._tags
        return found

    def has(self, queue: str) -> bool:
        """Return whether the store of a queue is among these."""
        return self._find(queue) is not None

    def _find(self, queue: str) -> Store | None:
        return self._stores.get(tag_of(queue, self._tags))

    def __iter__(self) -> Iterator[Store]:
        """Iterate over all stores, in the order of their slots."""
        return iter(self._stores.values())

    @property
    def common(self) -> Store:
        """The store of the data that belongs to no queue."""
        return next(iter(self))

    def address(self) -> str:
        """Return host, port, database and prefix of the broker, without secrets.

        For a Redis Cluster these are the nodes in its URL, since its masters change.
        """
        pool, keys = self.common.client.connection_pool, self.common.keys
        known = pool.connection_kwargs
        address = known.get("path") or f"{known.get('host', 'localhost')}:{known.get('port', 6379)}"
        address = getattr(pool, "service_name", None) or address
        if "nodes" in known:
            address = "cluster " + ",".join(f"{host}:{port}" for host, port in known["nodes"].seeds)
        prefix = keys.prefix.removesuffix(f"{{{keys.tag}}}:")
        return f"{address}/{keys.database}{f', prefix {prefix}' if prefix else ''}"

    def now_ms(self) -> int:
        """Return Redis' clock in ms since 1970, from the first store that answers."""
        *others, last = self
        for store in others:
            with suppress(BrokerUnavailable):
                return store.now_ms()
        return last.now_ms()

    def began_us(self) -> int:
        """Return the time at which a reading of all stores begins, in µs since 1970. This is the
        earliest time of all stores' clocks.
        """
        return min(store.now_us() for store in self)

    def ask_each(
        self, queues: Iterable[str], question: Callable[[Store, frozenset[str]], T]
    ) -> tuple[list[T], str]:
        """Call *question* with each store and the queues that belong to the store.

        Returns
        -------
        (list[T], str)
            The answers, and a text about stores that are away; ``""`` if none is away.

        Raises
        ------
        BrokerUnavailable
            All stores are away.
        """
        answers: list[T] = []
        away: dict[str, BrokerUnavailable] = {}
        for tag, store in self.by_tag():
            try:
                answers.append(question(store, self.own(store, queues)))
            except BrokerUnavailable as exc:
                away[tag] = exc
        if not away:
            return answers, ""
        why = next(iter(away.values()))
        if not answers:
            raise why
        return answers, f"shard of {', '.join(away)} is away: {why}"

    def run_each(
        self,
        queues: Iterable[str],
        steps: Callable[[Store, str], Steps[T]],
        together: int = MAX_PIPELINED_QUEUES,
        refused: dict[str, Exception] | None = None,
    ) -> dict[str, T]:
        """Run the steps of many queues together.

        See :meth:`~celery_delayq.store.scripting.runner.ScriptRunner.run_each`.

        Parameters
        ----------
        refused : dict[str, Exception] | None
            Gets the errors of queues with a refused call; None to raise the first error.

        Returns
        -------
        dict[str, T]
            The results of the other queues, in the order of *queues*.

        Raises
        ------
        CommandRefused
            A call of one queue was refused. The calls of all other queues were made.
        BrokerUnavailable
            A server is gone.
        """
        names = [*queues]
        results: dict[str, T | Exception] = {}
        for store, its in self._by_store(names).items():
            found = store.run_each((steps(store, queue) for queue in its), together)
            results.update(zip(its, found, strict=True))
        errors = {} if refused is None else refused
        done: dict[str, T] = {}
        for queue in names:
            result = results[queue]
            if isinstance(result, Exception):
                errors[queue] = result
            else:
                done[queue] = result
        if errors and refused is None:
            raise next(iter(errors.values()))
        return done

    def queues_with(self, queues: Collection[str], ids: Sequence[str]) -> Collection[str]:
        """Return the queues that may have messages with one of *ids*. One queue is not checked.

        Raises
        ------
        CommandRefused, BrokerUnavailable
            As in :meth:`run_each`.
        """
        if len(queues) < 2:
            return queues
        found: list[str] = []
        for store, its in self._by_store(queues).items():
            found += answered(store.run_each([store.control.queues_with_steps(its, ids)]))[0]
        return found

    def _by_store(self, queues: Iterable[str]) -> dict[Store, list[str]]:
        by_store: dict[Store, list[str]] = {}
        for queue in queues:
            by_store.setdefault(self.of(queue), []).append(queue)
        return by_store

    @property
    def has_one(self) -> bool:
        """Whether this is a single Redis."""
        return len(self._tags) == 1

    @property
    def only(self) -> Store:
        """The store of a single Redis.

        Raises
        ------
        NotSupported
            The broker is a Redis Cluster.
        """
        if not self.has_one:
            raise NotSupported("the broker is a Redis Cluster: this needs a single Redis")
        return self.common

    def registry(self) -> dict[str, bytes]:
        """Return the stored layout of every registered queue."""
        found: dict[str, bytes] = {}
        for store in self:
            found.update(store.registry())
        return found

    def controls(self) -> PausedNames:
        """Return the paused queues and tasks of all stores."""
        found = [store.control.controls() for store in self]
        return PausedNames(
            max(each.revision for each in found),
            dict(chain.from_iterable(each.queues.items() for each in reversed(found))),
            dict(chain.from_iterable(each.tasks.items() for each in reversed(found))),
        )

    def pause(
        self, queue: str | None, task: str | None, *, resume: bool = False, token: str
    ) -> bool:
        """Pause a queue or a task, or resume it. Return whether this changed any store.

        Each pause is written to all stores, to the first store first. After an interrupted call
        ``fsck`` copies the pauses of the first store to the others. The same holds for revokes.
        """
        written = [write_pause(store, queue, task, resume=resume, token=token) for store in self]
        return any(written)

    def change_limit(
        self,
        name: str,
        override: Callable[[StoredLimit], str | None],
        *,
        forgets_code: bool = False,
    ) -> None:
        """Change what people have set for a limit.

        The first store puts the changes of several callers in order; the other stores follow it.
        After an interrupted call they follow at the next change of the limit, or by ``fsck``.

        Parameters
        ----------
        name : str
            The name of the limit, percent-encoded.
        override : Callable[[StoredLimit], str | None]
            Returns what to set, ``""`` for nothing, from the definitions in the first store; None
            to leave them as they are. It is called again if another caller has changed them.
        forgets_code : bool
            Whether to forget what the code says too.
        """
        limits = self.common.task_limits
        while True:
            before = limits.stored(name)
            after = override(before)
            if after is None:
                return
            of_code = "" if forgets_code else before.of_code
            if limits.change(name, before, StoredLimit(of_code, after)):
                break
        limits.wake_lanes([name])
        self.follow_limit(name, forgets_code=forgets_code)

    def follow_limit(self, name: str, *, forgets_code: bool = False) -> None:
        """Copy what people have set for a limit from the first store to the others."""
        first, *others = (store.task_limits for store in self)
        for limits in others:
            while True:
                before = limits.stored(name)
                of_code = "" if forgets_code else before.of_code
                # Read after *before*: a store that has followed a later change does not go back.
                after = StoredLimit(of_code, first.stored(name).override)
                if after == before:
                    break
                limits.change(name, before, after)
            limits.wake_lanes([name])

    def revoke(
        self,
        seconds: float,
        ids: Sequence[str] = (),
        stamps: Mapping[str, Any] | None = None,
        canvas: Canvas | None = None,
    ) -> None:
        """Remember ids, stamps and a canvas as revoked, in each store.

        See :meth:`~celery_delayq.store.control.ControlStore.revoke`.
        """
        for store in self:
            store.control.revoke(seconds, ids, stamps, canvas)

    def not_revoked(
        self, ids: Sequence[str], stamps: Mapping[str, Any] | None = None
    ) -> Sequence[str]:
        """Return the ids, and the stamps in JSON, that some store does not remember as revoked."""
        found = (store.control.not_revoked(ids, stamps) for store in self)
        return [*dict.fromkeys(chain.from_iterable(found))]

    @property
    def histories(self) -> Mapping[str, HistoryStore]:
        """The histories of runs, by tag; ``""`` for a single Redis."""
        return {tag: store.history for tag, store in self.by_tag()}

    def last_run(self) -> str | None:
        """Return the offset of the newest run of all histories; None if there is none."""
        found = [
            offset
            for each in self.histories.values()
            if (offset := each.newest_offset()) is not None
        ]
        return max(found, key=place_of, default=None)

    def read_runs(self, after: str, upto: str, limit: int) -> list[tuple[str, bytes]]:
        """Return offset and bytes of about *limit* runs after *after*, up to *upto*.

        Runs of several histories may have the same offset. All of these runs are returned together.
        """
        found = [run for each in self.histories.values() for run in each.read(after, upto, limit)]
        found.sort(key=lambda run: place_of(run[0]))
        end = limit
        while limit <= end < len(found) and found[end][0] == found[end - 1][0]:
            end += 1
        return found[:end]

    def runs_since(self, ms: int, count: int) -> list[tuple[str, bytes]]:
        """Return offset and bytes of the newest *count* runs that were stored since *ms* (ms since
        1970), the newest first.
        """
        return self._newest_of_all(count, str(max(0, ms)))

    def newest_runs(self, count: int, id: str | None = None) -> list[tuple[str, bytes]]:
        """Return offset and bytes of the newest *count* runs of all histories, or of one task, the
        newest first.
        """
        if id is None:
            return self._newest_of_all(count)
        field = id_field(id)
        found = [run for each in self.histories.values() for run in each.newest_of(field, count)]
        return sorted(found, key=_place_of_run, reverse=True)[:count]

    def _newest_of_all(self, count: int, since: str = "-") -> list[tuple[str, bytes]]:
        page = min(PAGE_RUNS, count)
        every = (each.backwards(page, since) for each in self.histories.values())
        return [*islice(heapq.merge(*every, key=_place_of_run, reverse=True), count)]

    def disconnect(self, *, inuse: bool = True) -> None:
        """Close the idle connections and, with *inuse*, the connections in use."""
        for store in self:
            store.client.connection_pool.disconnect(inuse_connections=inuse)


def _place_of_run(run: tuple[str, bytes]) -> tuple[int, int]:
    return place_of(run[0])


def find_steps_of(ids: Sequence[str]) -> Callable[[Store, str], Steps[list[Location]]]:
    """Return steps that find the places of all messages of a queue with one of *ids*."""
    return lambda store, queue: store.control.find_steps(queue, ids)


def write_pause(
    store: Store,
    queue: str | None,
    task: str | None,
    *,
    resume: bool = False,
    token: str | None = None,
) -> bool:
    """Pause a queue or a task in one store, or resume it. Return whether this changed the store."""
    queues = [each for each in store.registry() if queue in (None, each)] if resume else []
    return store.control.pause(queues, queue=queue, task=task, resume=resume, token=token)
