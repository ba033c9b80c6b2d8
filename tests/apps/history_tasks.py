"""An app whose tasks end in every way that a history tells apart."""

from __future__ import annotations

import time
from typing import Any

from celery.exceptions import Ignore, Reject

from tests.apps.settings import new_app

app = new_app("history")


@app.task(bind=True, name="history.end", max_retries=1, shared=False)
def end(self: Any, how: str = "") -> str:
    """End in the way that is named; after a retry, well."""
    if self.request.retries:
        return "at last"
    if how == "retry":
        try:
            raise ValueError("not yet")
        except ValueError as exc:
            raise self.retry(exc=exc, countdown=0.2) from exc
    if how == "fail":
        raise ValueError("no\nmore")
    if how == "reject":
        raise Reject("not to my taste", requeue=False)
    if how == "ignore":
        raise Ignore
    return "done"


@app.task(name="history.nap", shared=False)
def nap(seconds: float) -> None:
    """Say that it begins, and take so long."""
    print("napping", flush=True)
    time.sleep(seconds)
