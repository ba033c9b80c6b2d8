"""Settings and URLs that are refused before there is a connection, on RabbitMQ and on Redis."""

from __future__ import annotations

import logging
from dataclasses import fields
from typing import Any

import pytest
from celery import Celery

from celery_delayq.errors import ConfigError, NotSupported
from celery_delayq.settings import ON_RABBITMQ, ON_REDIS, Settings
from celery_delayq.utils import once

AMQP, REDIS = "delayq+amqp://guest:guest@localhost//", "delayq+redis://localhost/0"


def open_transport(url: str, options: dict[str, Any]) -> None:
    """Make what reads the settings; it connects to nothing."""
    with Celery("shop", broker=url, set_as_current=False) as app:
        app.conf.broker_transport_options = options
        with app.connection_for_write() as connection:
            assert connection.transport


@pytest.mark.parametrize(
    ("url", "setting"),
    [*((AMQP, name) for name in ON_REDIS), *((REDIS, name) for name in ON_RABBITMQ)],
)
def test_a_setting_of_the_other_broker_is_refused_and_it_is_said_which(
    url: str, setting: str
) -> None:
    other = "redis" if url == AMQP else "amqp"

    with pytest.raises(NotSupported, match=rf"{setting}: only for a broker delayq\+{other}://"):
        open_transport(url, {"delayq": {setting: getattr(Settings(), setting)}})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"unitt": 1}, r"unknown delayq setting\(s\): unitt \(did you mean unit\?\); valid are"),
        ({"unit": "1"}, "unit='1': expected a number of seconds from 0.005 to 60"),
        ({"unit": 0}, "unit=0: expected a number"),
        ({"max_delay": float("nan")}, "max_delay=nan: expected a number"),
        ({"max_length": 1.5}, "max_length=1.5: expected a whole number"),
        ({"max_length": -1}, "max_length=-1: expected a whole number"),
        ({"queue_type": "stream"}, "queue_type='stream': expected 'quorum' or 'classic'"),
        ({"prefix": "amq.x"}, "prefix='amq.x': expected up to 40 .* and not 'amq.' first"),
        ({"prefix": ""}, "prefix='': expected up to 40"),
        ({"prefix": 5}, "prefix=5: expected up to 40"),
        ({"declare": 1}, "declare=1: expected True or False"),
        (5, "is of type int; it must be a mapping"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_would_be_right(options: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        open_transport(AMQP, {"delayq": options})


@pytest.mark.parametrize(
    ("url", "others"), [(AMQP, ON_REDIS), (REDIS, ON_RABBITMQ)], ids=["RabbitMQ", "Redis"]
)
@pytest.mark.parametrize("given", [{"max_redy": 1, "unitt": 1}, 5], ids=["unknown", "no mapping"])
def test_an_error_lists_settings_of_this_broker_only(
    url: str, others: tuple[str, ...], given: Any
) -> None:
    with pytest.raises(ConfigError) as caught:
        open_transport(url, {"delayq": given})

    listed = {*str(caught.value).rpartition(": ")[2].split(", ")}
    assert listed == {field.name for field in fields(Settings)}.difference(others)
    assert str(caught.value).count("did you mean") == (given != 5)


@pytest.mark.parametrize("query", ["heartbeat=5", "ssl_cert_req=none", "credential_provider=a.b"])
def test_an_unknown_option_of_the_url_is_refused(query: str) -> None:
    name = query.partition("=")[0]

    with pytest.raises(ConfigError, match=rf"option\(s\) {name} are not known; valid are ssl_"):
        open_transport(f"{AMQP}?{query}", {})


@pytest.mark.parametrize(
    ("options", "says"),
    [({"unit": 1}, "['delayq']['unit']"), ({"delay_q": {"unit": 1}}, "'delayq'")],
)
def test_a_setting_in_the_wrong_place_is_warned_of(
    options: dict[str, Any], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    once.warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        open_transport(AMQP, options)

    assert "has no effect; did you mean" in caplog.text
    assert says in caplog.text
