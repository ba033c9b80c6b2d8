"""The app ``shop`` of the pages: a copy of this file is ``shop.py`` where their blocks run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from celery import Celery

from celery_delayq import DelayQ, Limit

app = Celery("shop", broker="delayq+redis://localhost:6379/0", backend="redis://localhost:6379/0")
delayq = DelayQ(app, at_least_once=True)
sent: list[Any] = []


class InvalidOrder(Exception):
    """An order that no retry helps."""


@app.task(shared=False, name="shop.remind")
def remind(user: Any = None, text: Any = "", order_id: Any = None, address: Any = None) -> Any:
    """Remind somebody."""
    sent.append(user)
    print(f"hello {user}")


@app.task(shared=False, name="shop.ship")
def ship(order: Any = None, note: Any = None) -> Any:
    """Fail, as the network does."""
    raise TimeoutError(order)


@app.task(shared=False, name="shop.pay")
def pay(order: Any = None, amount: Any = 0, currency: Any = "EUR") -> Any:
    """Pay an order."""


@app.task(
    shared=False,
    name="shop.charge",
    limit=Limit("stripe", rate="100/m", burst=20, concurrency=8, key="{customer}"),
)
def charge(customer: Any, amount: Any) -> Any:
    """Charge a customer."""


@app.task(shared=False, name="shop.add")
def add(x: Any, y: Any) -> Any:
    """Add two numbers."""
    return x + y


@app.task(shared=False, name="shop.poll")
def poll(source: Any = None) -> Any:
    """Look for news."""


@app.task(shared=False, name="shop.report")
def report() -> Any:
    """Write the report."""


@app.task(shared=False, name="mail.remind")
def mail(*args: Any, **kwargs: Any) -> Any:
    """Send a mail."""


def create_app() -> Any:
    """Return an object with the Celery app, as a factory of Flask does."""
    return SimpleNamespace(extensions={"celery": app})
