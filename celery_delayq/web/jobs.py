"""Changes that run in threads, their progress and their outcomes."""

from __future__ import annotations

import logging
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime
from threading import Event
from typing import Any, NamedTuple

from celery_delayq.errors import DelayQError
from celery_delayq.model.scheduled import Bulk, Outcome
from celery_delayq.store.error_text import BROKER_ERRORS, describe_error
from celery_delayq.utils.text import spelled

logger = logging.getLogger(__name__)

#: Changes that run at once, and changes that a server remembers.
THREADS, MAX_JOBS = 2, 500


class Back(NamedTuple):
    """A page to which a change leads back: the rest of its path, and its fields."""

    page: str
    rest: str = ""
    fields: Mapping[str, str] = {}


class Stopped(Exception):
    """Somebody has stopped the change."""


@dataclass
class Job:
    """A change, while it runs and afterwards.

    Attributes
    ----------
    id : str
        A name that nobody can guess.
    title : str
        What is changed, as a sentence.
    user : str
        The name of the user.
    back : Back
        The page of what was changed.
    total : int
        Number of tasks to change, as far as known.
    log_text : str
        What the log says of the change besides its title.
    outcomes : Counter[Outcome]
        Number of tasks by outcome.
    error : str
        Why the change ended early; ``""`` if it did not.
    done_text : Callable[[int], str]
        Returns what was changed, for the number of changed tasks.
    facts : list[tuple[str, str | datetime]]
        New values, with their titles.
    task_id : str
        The id of the only task that is changed; ``""`` if there are several, or it is deleted.
    """

    title: str
    user: str
    back: Back
    total: int = 0
    log_text: str = ""
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    error: str = ""
    done_text: Callable[[int], str] = "{:,}".format
    facts: list[tuple[str, str | datetime]] = field(default_factory=list)
    task_id: str = ""
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    finished: Event = field(default_factory=Event)
    stopping: Event = field(default_factory=Event)

    @property
    def done(self) -> int:
        """Number of changed tasks."""
        return self.outcomes[Outcome.DONE]

    @property
    def shown_task_id(self) -> str:
        """The id of the only task, unless it has gone or the way back leads there anyway."""
        has_gone = self.outcomes[Outcome.UNKNOWN] > 0
        is_there = self.back[:2] == ("task", self.task_id)
        return "" if has_gone or is_there else self.task_id

    @property
    def unchanged(self) -> dict[Outcome, int]:
        """Number of tasks that were not changed, by outcome."""
        return {each: n for each, n in self.outcomes.items() if n and each is not Outcome.DONE}

    def note(self, bulk: Bulk) -> None:
        """Note the progress of a change of many.

        Raises
        ------
        Stopped
            Somebody has stopped the change.
        """
        self.total, self.outcomes = bulk.total, Counter(bulk.outcomes)
        self.check()

    def check(self) -> None:
        """Raise Stopped if somebody has stopped the change."""
        if self.stopping.is_set():
            raise Stopped


class Jobs:
    """The changes of one server."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._executor = ThreadPoolExecutor(THREADS, "delayq-web-job")
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._begun: set[Future[None]] = set()

    def get(self, id: str) -> Job | None:
        """Return a change by its id; None if this server does not know it."""
        return self._jobs.get(id)

    def begin(self, job: Job, change: Callable[[Job], object]) -> None:
        """Begin a change in a thread."""
        self._jobs[job.id] = job
        while len(self._jobs) > MAX_JOBS:
            self._jobs.popitem(last=False)
        self._begun = {each for each in self._begun if not each.done()}
        self._begun.add(self._executor.submit(self._run, job, change))

    def close(self, seconds: float) -> bool:
        """Stop all changes and wait at most *seconds*; return whether all have ended."""
        for each in self._jobs.values():
            each.stopping.set()
        self._executor.shutdown(wait=False, cancel_futures=True)
        return not wait(self._begun, seconds).not_done

    def _run(self, job: Job, change: Callable[[Job], object]) -> None:
        try:
            change(job)
        except Stopped:
            job.error = "It was stopped."
        except (DelayQError, *BROKER_ERRORS) as exc:
            job.error = describe_error(exc, self._app)
        except Exception:
            logger.exception("A change failed: %s", spelled(job.title))
            job.error = "It failed; the log has the error."
        finally:
            outcomes = ", ".join(f"{number} {outcome}" for outcome, number in job.outcomes.items())
            end = f"; {job.error}" if job.error else ""
            how = f" ({job.log_text})" if job.log_text else ""
            logger.info(
                "User %s: %s%s: %s%s",
                spelled(job.user), spelled(job.title), spelled(how), outcomes or "nothing",
                spelled(end),
            )  # fmt: skip
            job.finished.set()
