"""Reminders over HTTP: ``uvicorn service:api``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated, Any

from celery.exceptions import TimeoutError
from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel, Field
from tasks import delayq, remind

from celery_delayq.aio import AsyncDelayQ
from celery_delayq.errors import BrokerUnavailable, InvalidETA, QueueFull


@asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncIterator[None]:
    """Connect in the event loop that serves the requests."""
    async with AsyncDelayQ(delayq) as api.state.delayq:
        yield


async def client(request: Request) -> AsyncDelayQ:
    """Return the client of this process."""
    found: AsyncDelayQ = request.app.state.delayq
    return found


api = FastAPI(title="Reminders", lifespan=lifespan)
Client = Annotated[AsyncDelayQ, Depends(client)]


class NewReminder(BaseModel):
    """What is to be sent, to whom and when."""

    to: str
    text: str
    seconds: float = Field(ge=0, description="from now")


class Reminder(BaseModel):
    """A reminder that has not been sent yet."""

    id: str
    state: str
    due: datetime


@api.post("/reminders", status_code=202)
async def add(new: NewReminder, delayq: Client) -> dict[str, str]:
    """Send it later."""
    try:
        sent = await delayq.apply_async(remind, (new.to, new.text), countdown=new.seconds)
    except InvalidETA as exc:
        raise HTTPException(422, str(exc)) from exc
    except QueueFull as exc:
        raise HTTPException(429, str(exc)) from exc
    except BrokerUnavailable as exc:
        raise HTTPException(503, "Redis is away") from exc
    return {"id": sent.id}


@api.get("/reminders")
async def count(delayq: Client) -> dict[str, int]:
    """Count what waits."""
    return {"scheduled": await delayq.count(task=remind.name)}


@api.get("/reminders/{id}")
async def get(id: str, delayq: Client) -> Reminder:
    """Find one that was not sent yet."""
    found = await delayq.get(id)
    if found is None:
        raise HTTPException(404)
    return Reminder(id=found.id, state=found.state, due=found.due)


@api.patch("/reminders/{id}")
async def move(id: str, seconds: float, delayq: Client) -> dict[str, str]:
    """Send it so many seconds from now instead."""
    outcome = await delayq.reschedule(id, countdown=seconds)
    if not outcome:
        raise HTTPException(409, outcome.value)
    return {"outcome": outcome.value}


@api.delete("/reminders/{id}")
async def cancel(id: str, delayq: Client) -> dict[str, str]:
    """Never send it."""
    outcome = await delayq.cancel(id)
    if not outcome:
        raise HTTPException(409, outcome.value)
    return {"outcome": outcome.value}


@api.get("/reminders/{id}/result")
async def result(id: str, delayq: Client, timeout: float = 10.0) -> dict[str, Any]:
    """Wait until it was sent."""
    try:
        return {"result": await delayq.result(id, timeout=timeout)}
    except TimeoutError:
        raise HTTPException(504, f"not sent within {timeout:g} s") from None
