"""The stores of one broker: one on a single Redis, one for each hash tag of a Redis Cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import TypeVar

from celery_delayq.errors import BrokerUnavailable, NotSupported
from celery_delayq.model.cluster_tags import tag_of
from celery_delayq.model.lookup import Location, PausedNames
from celery_delayq.store.schedule import Store
from celery_delayq.store.scripting.calls import Steps
from celery_delayq.store.scripting.runner import QUEUES_TOGETHER

T = TypeVar("T")


class Stores:
    """A store for each hash tag: to its queues what the store of a single Redis is to all queues.

    Each has its own next-due index, registry, lease time, pauses, history and counters.

    Parameters
    ----------
    stores : Mapping[str, Store]
        By tag; a single Redis has one without a name.
    """

    def __init__(self, stores: Mapping[str, Store]) -> None:
        self._stores = stores
        self._tags = tuple(stores)

    @classmethod
    def single(cls, store: Store) -> Stores:
        """Return the store of a single Redis."""
        return cls({"": store})

    def of(self, queue: str) -> Store:
        """Return the store of a queue."""
        return self._stores[tag_of(queue, self._tags)]

    def of_tag(self, tag: str) -> Store:
        """Return the store of a hash tag; that of a single Redis has no name."""
        return self._stores[tag]

    def by_tag(self) -> Iterable[tuple[str, Store]]:
        """Return all stores with their tags, in the order of their slots."""
        return self._stores.items()

    def own(self, store: Store, queues: Iterable[str]) -> frozenset[str]:
        """Return those of the queues that belong to a store."""
        return frozenset(queue for queue in queues if self._find(queue) is store)

    def without(self, tags: Collection[str]) -> Stores:
        """Return the others than those of some hash tags; each queue keeps its tag."""
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
    def first(self) -> Store:
        """The store of what belongs to no queue."""
        return next(iter(self))

    def now_ms(self) -> int:
        """Return Redis' clock in ms since 1970: that of the first store that answers."""
        *others, last = self
        for store in others:
            with suppress(BrokerUnavailable):
                return store.now_ms()
        return last.now_ms()

    def began_us(self) -> int:
        """Return when a reading of them all begins, in µs since 1970: by the clock that is the
        furthest behind.
        """
        return min(store.now_us() for store in self)

    def run_each(
        self,
        queues: Iterable[str],
        steps: Callable[[Store, str], Steps[T]],
    ) -> dict[str, T]:
        """Run the steps of many queues together: :meth:`ScriptRunner.run_each`.

        Raises
        ------
        CommandRefused
            A call of one queue was refused; those of all others were made.
        BrokerUnavailable
            A server is gone.
        """
        found: dict[str, T] = {}
        refused: Exception | None = None
        for queue, result in self.try_each(queues, steps).items():
            if isinstance(result, Exception):
                refused = refused or result
            else:
                found[queue] = result
        if refused is not None:
            raise refused
        return found

    def try_each(
        self,
        queues: Iterable[str],
        steps: Callable[[Store, str], Steps[T]],
        together: int = QUEUES_TOGETHER,
    ) -> dict[str, T | Exception]:
        """Do the same, and return why one was refused in place of its result."""
        names = [*queues]
        found: dict[str, T | Exception] = {}
        for store, its in self._by_store(names).items():
            results = store.run_each((steps(store, queue) for queue in its), together)
            found.update(zip(its, results, strict=True))
        return {queue: found[queue] for queue in names}

    def find_each(self, queues: Collection[str], ids: Sequence[str]) -> dict[str, list[Location]]:
        """Return the places of all messages with one of *ids*, by the queues that have any.

        Raises
        ------
        CommandRefused, BrokerUnavailable
            As by :meth:`run_each`.
        """
        if len(queues) > 1:
            queues = [
                queue
                for store, its in self._by_store(queues).items()
                for queue in store.control.queues_with(its, ids)
            ]
        found = self.run_each(queues, lambda store, queue: store.control.find_steps(queue, ids))
        return {queue: places for queue, places in found.items() if places}

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
            There are several.
        """
        if not self.has_one:
            raise NotSupported("the broker is a Redis Cluster: this needs a single Redis")
        return self.first

    def registry(self) -> dict[str, bytes]:
        """Return the stored layout of every registered queue."""
        return {queue: layout for store in self for queue, layout in store.registry().items()}

    def controls(self) -> PausedNames:
        """Return the paused queues and tasks: a pause is written to all stores."""
        found = [store.control.controls() for store in self]
        return PausedNames(
            max(each.revision for each in found),
            dict(chain.from_iterable(each.queues.items() for each in reversed(found))),
            dict(chain.from_iterable(each.tasks.items() for each in reversed(found))),
        )

    def disconnect(self, *, inuse: bool = True) -> None:
        """Close the connections, with *inuse* also those in use."""
        for store in self:
            store.client.connection_pool.disconnect(inuse_connections=inuse)


def write_pause(
    store: Store,
    queue: str | None,
    task: str | None,
    *,
    resume: bool = False,
    token: str | None = None,
) -> bool:
    """Pause a queue or a task in one store, or resume it; return whether that changed anything.

    Write to all stores in their order: ``fsck`` finishes an interrupted call as the first one says.
    """
    queues = [each for each in store.registry() if queue in (None, each)] if resume else []
    return store.control.pause(queues, queue=queue, task=task, resume=resume, token=token)


def last_run(stores: Stores) -> str | None:
    """Return the offset of the newest run in any store, None when there is none."""
    found = [offset for store in stores if (offset := store.history.last()) is not None]
    return max(found, key=_place, default=None)


def read_runs(stores: Stores, after: str, upto: str, limit: int) -> list[tuple[str, bytes]]:
    """Return offset and bytes of about *limit* runs after one offset, up to another one.

    Runs of several stores may have the same offset: all of them come together.
    """
    found = [entry for store in stores for entry in store.history.read(after, upto, limit)]
    found.sort(key=lambda entry: _place(entry[0]))
    end = limit
    while limit <= end < len(found) and found[end][0] == found[end - 1][0]:
        end += 1
    return found[:end]


def _place(offset: str) -> tuple[int, ...]:
    return tuple(map(int, offset.split("-")))
