"""Webhooks: where they may go, how they are signed, and what an answer means."""

from __future__ import annotations

import datetime as dt
import logging
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from celery import Celery

from celery_delayq import DelayQ, Limit
from celery_delayq.errors import ConfigError, InvalidWebhook
from celery_delayq.model.limits.of_app import AppLimits
from celery_delayq.webhook import IMPORT_PATH, TASK_NAME, Webhook, deliver
from tests.support.receiver import Receiver

UTC = dt.timezone.utc
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


# -- settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"allow": []}, "expected the hosts"),
        ({"allow": "hooks.example.com"}, "expected a list"),
        *(
            ({"allow": [entry]}, "expected the name of a host")
            for entry in (
                *(b"hooks.example.com", "*", "*.", "a.*.example.com", "*.10.0.0.1", "2130706433"),
                *("https://hooks.example.com", "hooks.example.com/path", "user@hooks.example.com"),
                *("hooks.example.com:0", "hooks.example.com:65536", "hooks.example.com:"),
                "hööks.example.com",
            )
        ),
        ({"allow": ["10.0.0.5:8080"]}, r"add allow_networks=\['10\.0\.0\.5'\]"),
        ({"allow": ["[::1]:8080"]}, r"add allow_networks=\['::1'\]"),
        ({"allow_networks": "10.0.0.0/8"}, "expected a list"),
        ({"allow_networks": ["10.0.0.1/8"]}, "host bits"),
        ({"allow_networks": [10]}, "expected networks such as"),
        ({"secret": ""}, "it is empty"),
        ({"secret": b""}, "it is empty"),
        ({"secret": 7}, "of type int"),
        ({"secret": "whsec_no base64"}, "is no base64"),
        ({"allow_http": "yes"}, "True or False"),
        ({"timeout": 0}, "seconds from 0.001 to 3600"),
        ({"timeout": float("nan")}, "seconds from"),
        ({"timeout": True}, "seconds from"),
        ({"connect_timeout": "5"}, "seconds from"),
        ({"max_response": 1.5}, "bytes from 0 to 65536"),
        ({"max_retry_after": -1}, "seconds from 0"),
        ({"user_agent": "shop\r\nX: y"}, "printable ASCII"),
        ({"user_agent": ""}, "printable ASCII"),
        ({"ca_file": ""}, "path of a file"),
    ],
)
def test_wrong_settings_are_refused_with_what_would_be_right(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Webhook(**{"allow": ["hooks.example.com"], **given})

    assert "no base64" not in str(caught.value).replace("is no base64", "")


def test_the_secret_is_not_shown() -> None:
    settings = Webhook(allow=["hooks.example.com"], secret="s3cret")

    assert "s3cret" not in repr(settings)
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert hash(settings) == hash(Webhook(allow=("hooks.example.com",), secret="s3cret"))


# -- the task at the call ---------------------------------------------------------------------


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    DelayQ(app, webhook=Webhook(allow=["hooks.example.com"], secret="s3cret"))
    yield app
    app.close()


def sent(app: Celery) -> list[Any]:
    """Return the messages that were sent, and take them away."""
    found = []
    with app.connection_for_read() as connection, connection.SimpleQueue("celery") as queue:
        while queue.qsize():
            found.append(queue.get(block=False))
            found[-1].ack()
    return found


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (("https://user:pw@hooks.example.com/",), {}, "user or password"),
        (("ftp://hooks.example.com/",), {}, "begins with https://"),
        (("http://hooks.example.com/",), {}, "expected https"),
        (("https://evil.example.net/",), {}, "is not allowed"),
        ((), {"url": "https://evil.example.net/"}, "is not allowed"),
        (("https://hooks.example.com/", float("nan")), {}, "as JSON"),
        (
            ("https://hooks.example.com/",),
            {"headers": {"Host": "evil"}},
            "celery_delayq sets this header",
        ),
    ],
)
def test_what_must_not_be_sent_is_refused_at_the_call(
    app: Celery, args: Any, kwargs: Any, message: str
) -> None:
    with pytest.raises(InvalidWebhook, match=message):
        app.tasks[TASK_NAME].apply_async(args, kwargs, countdown=60)

    assert sent(app) == []


def test_without_settings_the_allow_list_is_left_to_the_worker(app: Celery) -> None:
    app._delayq.webhook = None

    app.tasks[TASK_NAME].delay("https://hooks.example.net/")
    with pytest.raises(InvalidWebhook, match="user or password"):
        app.tasks[TASK_NAME].delay("https://user:pw@hooks.example.net/")

    assert len(sent(app)) == 1


def test_missing_arguments_are_refused_as_by_any_task(app: Celery) -> None:
    with pytest.raises(TypeError, match="url"):
        app.tasks[TASK_NAME].delay()


def test_what_celery_sends_itself_is_checked_when_it_runs(app: Celery) -> None:
    """A link whose first argument is a result: whoever has sent it is gone."""
    app.tasks[TASK_NAME].s("https://hooks.example.com/").apply_async((7,), parent_id="parent")

    assert len(sent(app)) == 1


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (("https://hooks.example.com/a?token=s3cret", {"id": 7}), {"headers": {"X-A": "s3cret"}}),
        ((), {"url": "https://hooks.example.com/a?token=s3cret", "payload": {"id": 7}}),
    ],
)
def test_descriptions_of_the_task_show_neither_query_nor_values_of_headers(
    app: Celery, args: Any, kwargs: Any
) -> None:
    app.tasks[TASK_NAME].apply_async(args, kwargs)

    [message] = sent(app)
    shown = message.headers["argsrepr"] + message.headers["kwargsrepr"]
    assert "s3cret" not in shown
    assert "https://hooks.example.com/a?…" in shown
    assert "'id': 7" in shown
    assert message.payload[0] == list(args)
    assert message.payload[1] == kwargs


def host(url: str, *_: Any, **__: Any) -> Any:
    """Return the host of a webhook, as docs/webhook.md does."""
    return urlsplit(url).hostname


@pytest.mark.parametrize("name", [TASK_NAME, IMPORT_PATH])
@pytest.mark.parametrize("by_name", [False, True])
def test_the_limit_of_the_docs_has_a_lane_for_each_host(
    app: Celery, name: str, by_name: bool
) -> None:
    limits = AppLimits({"celery_delayq.webhook*": Limit("webhooks", rate="10/s", key=host)})
    limited = limits.of(name, app.tasks[name])
    assert limited is not None

    url, order = "https://Hooks.Example.com:8443/orders?token=t0ken", {"id": 7}
    args, kwargs = ((), {"url": url, "payload": order}) if by_name else ((url, order), {})

    assert (
        limited.lane_of(args, {**kwargs, "headers": {"X-A": "b"}}) == "webhooks:hooks.example.com"
    )


def test_without_settings_the_task_fails_and_says_what_to_do(app: Celery) -> None:
    app._delayq.webhook = None

    result = app.tasks[TASK_NAME].apply(("https://hooks.example.com/",))

    assert isinstance(result.result, ConfigError)
    assert "DelayQ(app, webhook=Webhook(" in str(result.result)


def test_settings_of_another_type_are_refused_and_not_shown(app: Celery) -> None:
    app._delayq.webhook = {"secret": "s3cret"}

    with pytest.raises(ConfigError, match="of type dict") as caught:
        app.tasks[TASK_NAME].delay("https://hooks.example.com/")

    assert "s3cret" not in str(caught.value)


WITHOUT_HTTPCORE = """
import sys
sys.modules["httpcore"] = None
from celery_delayq.webhook import Webhook, deliver, post
from celery_delayq.errors import ConfigError
try:
    deliver(Webhook(allow=["hooks.example.com"]), "https://hooks.example.com/", 1, None, "id")
except ConfigError as exc:
    print(exc)
"""


def test_without_httpcore_the_module_is_imported_and_the_task_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_HTTPCORE], capture_output=True, text=True, check=True
    )

    assert 'needs httpcore: pip install "celery-delayq[webhook]"' in done.stdout


# -- what is logged ---------------------------------------------------------------------------


def test_the_query_and_the_secret_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    settings = Webhook(
        allow=["127.0.0.1:*"], secret="s3cret", allow_http=True, allow_networks=["127.0.0.1"]
    )

    with Receiver(200) as receiver:
        deliver(settings, receiver.url("/orders?token=t0ken"), None, {"X-A": "v4lue"}, "id")

    assert receiver.requests[0].path == "/orders?token=t0ken"
    assert "/orders" in caplog.text
    assert not any(secret in caplog.text for secret in ("s3cret", "t0ken", "v4lue"))
