"""Exporters on a real Redis, and what they export."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from celery_delayq import DelayQ
from celery_delayq.metrics.exporter import Exporter

#: By name and values of labels, in the order of their names.
Values = dict[tuple[str, ...], float]


def values_of(text: bytes) -> Values:
    """Return all values of an exposition; each series may be there once."""
    samples = [sample for family in parse(text.decode()) for sample in family.samples]
    found = {
        (each.name, *(each.labels[name] for name in sorted(each.labels))): each.value
        for each in samples
    }
    assert len(found) == len(samples)
    return found


class Exported:
    """An exporter without its thread: a test says when it reads what takes longer."""

    def __init__(self, delayq: DelayQ, tasks: int = 200) -> None:
        self.exporter = Exporter(delayq, tasks)

    def text(self, timeout: float = 5.0) -> bytes:
        """Return what a scrape gets."""
        return self.exporter.scrape(timeout)

    def refresh(self) -> None:
        """Read what takes longer."""
        self.exporter.refresh()

    def all(self, *names: str) -> Values:
        """Return the values of metrics, after a refresh."""
        self.refresh()
        return self.now(*names)

    def now(self, *names: str) -> Values:
        """Return the values of metrics by a scrape."""
        found = values_of(self.text())
        full = {f"delayq_{name}" for name in names}
        return {key: value for key, value in found.items() if not names or key[0] in full}


Export = Callable[..., Exported]


@pytest.fixture
def export() -> Iterator[Export]:
    with ExitStack() as stack:

        def make(delayq: DelayQ, tasks: int = 200) -> Exported:
            made = Exported(delayq, tasks)
            stack.callback(made.exporter.stop)
            return made

        yield make
