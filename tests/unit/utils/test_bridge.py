"""Synchronous code runs in greenlets of an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

from celery_delayq.utils import bridge
from celery_delayq.utils.bridge import Bridge, off_loop, wait
from tests.support import TIMEOUT

variable: ContextVar[str] = ContextVar("variable", default="none")


def run(use: Callable[[Bridge], Coroutine[Any, Any, Any]], greenlets: int = 2) -> Any:
    async def main() -> Any:
        used = Bridge(2, greenlets)
        try:
            return await asyncio.wait_for(use(used), TIMEOUT)
        finally:
            used.close()

    return asyncio.run(main())


@off_loop
def where(*, fail: bool = False) -> tuple[bool, str]:
    """Return whether this is the thread of the loop, and a context variable."""
    if fail:
        raise KeyError("here")
    return threading.current_thread() is threading.main_thread(), variable.get()


def test_a_function_waits_and_returns() -> None:
    def function() -> str:
        assert bridge.is_running()
        wait(asyncio.sleep(0))
        return wait(asyncio.sleep(0, "found"))

    assert run(lambda used: used.run(function)) == "found"
    assert not bridge.is_running()


def test_errors_reach_the_function_and_the_coroutine() -> None:
    async def failing() -> None:
        raise KeyError("inside")

    def function() -> None:
        with pytest.raises(KeyError, match="inside"):
            wait(failing())
        raise ValueError("outside")

    with pytest.raises(ValueError, match="outside"):
        run(lambda used: used.run(function))


def test_calls_wait_for_a_greenlet_in_their_order() -> None:
    running, most, order = 0, 0, []

    def function(number: int) -> None:
        nonlocal running, most
        order.append(number)
        running += 1
        most = max(most, running)
        wait(asyncio.sleep(0.001))
        running -= 1

    async def use(used: Bridge) -> None:
        await asyncio.gather(*(used.run(partial(function, n)) for n in range(9)))

    run(use, greenlets=3)

    assert (order, most, running) == ([*range(9)], 3, 0)


def test_cancelled_calls_return_their_greenlets() -> None:
    seen: list[str] = []

    def function() -> None:
        try:
            wait(asyncio.sleep(60))
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def use(used: Bridge) -> Any:
        calls = [asyncio.ensure_future(used.run(function)) for _ in range(5)]
        await asyncio.sleep(0.01)
        for each in calls[
            ::-1
        ]:  # waiting calls first, and a call that was just promised a greenlet
            each.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        return await asyncio.gather(*(used.run(lambda: "fine") for _ in range(5)))

    assert run(use) == ["fine"] * 5
    assert seen == ["cancelled"] * 2


def test_blocking_functions_run_in_a_thread_only_on_a_loop() -> None:
    async def use(used: Bridge) -> Any:
        variable.set("ours")
        with pytest.raises(KeyError):
            await used.run(lambda: where(fail=True))
        return await used.run(where)

    assert run(use) == (False, "ours")
    assert where() == (True, "none")


def test_a_function_uses_the_context_variables_of_its_coroutine() -> None:
    def function(name: str) -> str:
        variable.set(name)
        wait(asyncio.sleep(0.001))
        return variable.get()

    async def one(used: Bridge, name: str) -> tuple[str, str]:
        return await used.run(lambda: function(name)), variable.get()

    async def use(used: Bridge) -> Any:
        return await asyncio.gather(*(one(used, name) for name in "abcd"))

    assert run(use) == [(name, name) for name in "abcd"]
