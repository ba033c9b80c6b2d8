"""The app of the workers and the Flower that a browser looks at."""

from __future__ import annotations

from celery import Celery

from celery_delayq import DelayQ

app = Celery("flower")
DelayQ(app, web_changes=lambda user, _: user == "ops")


@app.task(name="flower.board", shared=False)
def board(flight: str) -> str:
    return f"{flight} boarded"
