"""An app whose workers accept each serializer, also signed messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from celery import Celery
from redis import Redis

from tests.apps.settings import SETTINGS, new_app

#: All that kombu has, and Celery's signed messages.
SERIALIZERS = ("json", "yaml", "msgpack", "pickle", "auth")


def note(self: Any, key: Any, *, text: str = "") -> Any:
    """Write down what the task got."""
    request = self.request
    run = {
        "id": request.id,
        "key": key,
        "text": text,
        "argsrepr": request.argsrepr,
        "priority": request.delivery_info["priority"],
        "expires": request.expires,
        "tenant": getattr(request, "tenant", None),
        "eta": request.eta,
    }
    with Redis.from_url(self.app.conf.result_backend) as client:
        client.rpush("log", json.dumps(run))
    return key


def follow(self: Any, key: Any) -> None:
    """Write down what was linked to a task."""
    with Redis.from_url(self.app.conf.result_backend) as client:
        client.rpush("log", json.dumps({"id": "linked", "key": key}))


def tasks_of(app: Celery) -> Celery:
    """Give *app* the tasks."""
    app.task(name="note", bind=True, shared=False)(note)
    app.task(name="follow", bind=True, shared=False)(follow)
    return app


def register_auth(folder: Path | str) -> None:
    """Have this process sign and verify messages with the key of a folder."""
    from celery.security import serialization

    key, certificate = (Path(folder, name).read_text() for name in ("key.pem", "cert.pem"))
    serialization.register_auth(key, None, certificate, str(Path(folder, "cert.pem")))


keys = SETTINGS.pop("keys", None)
app = tasks_of(new_app("update", accept_content=SERIALIZERS if keys else SERIALIZERS[:-1]))
if keys:
    register_auth(keys)
