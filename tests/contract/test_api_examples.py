"""The examples in the docstrings of the public API."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

import celery_delayq
from celery_delayq.testing.fixtures import RedisUnderTest

#: The module whose examples run in other tests: they need a Spark session.
ELSEWHERE = "celery_delayq.spark"


def examples() -> list[doctest.DocTest]:
    """Return the examples of all docstrings, one test for each docstring."""
    names = [
        each.name
        for each in pkgutil.walk_packages(celery_delayq.__path__, "celery_delayq.")
        if not each.name.startswith(ELSEWHERE) and not each.name.endswith("__main__")
    ]
    finder = doctest.DocTestFinder()
    modules = [celery_delayq, *map(import_module, names)]
    return [each for module in modules for each in finder.find(module) if each.examples]


EXAMPLES = examples()


@pytest.mark.parametrize("example", EXAMPLES, ids=[each.name for each in EXAMPLES])
def test_an_example_runs(example: doctest.DocTest, delayq_redis: RedisUnderTest) -> None:
    for each in example.examples:
        each.source = each.source.replace("localhost:6379", f"127.0.0.1:{delayq_redis.port}")
    report: list[str] = []

    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=report.append)

    assert "".join(report) == ""
