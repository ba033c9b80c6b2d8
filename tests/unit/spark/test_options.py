"""Options of the data source, and how executors reach Redis."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from celery import Celery

from celery_delayq import DelayQ
from celery_delayq.errors import ConfigError
from celery_delayq.spark.access import Access, open_client
from celery_delayq.spark.options import ReadOptions, WriteOptions

NEEDED: dict[str, Any] = {"task": "mail.remind", "idcolumn": "flight"}


def test_what_is_given_is_read_whatever_its_case() -> None:
    texts = {"etaColumn": "at", "Queue": "mail", "onConflict": "replace"}
    more: dict[str, Any] = {"refused": "/bad", "report": "/report.json"}
    numbers = {"priority": 3, "batchSize": 50, "rateLimit": 2.5}
    given = {**NEEDED, **texts, **more, "URL": "redis://cache:6379/1"}
    given |= {name: str(value) for name, value in numbers.items()}

    expected: Any = {name.lower(): value for name, value in {**texts, **numbers}.items()}
    assert WriteOptions.of(given) == WriteOptions(
        access=Access("redis://cache:6379/1"), **NEEDED, **more, **expected
    )


def test_what_is_not_given_has_its_default() -> None:
    assert WriteOptions.of(NEEDED) == WriteOptions(access=Access(), **NEEDED)
    assert ReadOptions.of({}) == ReadOptions(access=Access(), table="scheduled")


def test_what_spark_itself_gives_a_stream_is_let_pass() -> None:
    WriteOptions.of({**NEEDED, "checkpointLocation": "/checkpoints", "path": ""})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"task": ""}, "the option task is missing: the name of a Celery task"),
        ({"idcolumn": ""}, "the option idcolumn is missing: the column that identifies a row"),
        ({"onconflict": "skip"}, "onconflict='skip': 'skip' is not one of 'keep', 'replace', "),
        ({"priority": "high"}, "priority='high': 'high' is not a valid integer"),
        ({"batchsize": "0"}, "batchsize='0': 0 is not in the range 1<=x<=10000"),
        ({"ratelimit": "nan"}, "ratelimit='nan': expected a number"),
        ({"etacolumn": "a", "delaycolumn": "b"}, "etacolumn and delaycolumn are given"),
        (
            {"que": "mail", "foo": "1"},
            "unknown option.s. for writing: foo, que; valid are: app, batchsize, delaycolumn, ",
        ),
    ],
)
def test_what_is_wrong_is_reported_with_what_is_right(given: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        WriteOptions.of({**NEEDED, **given})


# -- where the queue is


def url_of(access: Access) -> Any:
    with open_client(access) as delayq:
        return delayq.app.conf.broker_write_url


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DELAYQ_URL", "CELERY_BROKER_URL", "DELAYQ_PASSWORD"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("given", "variables", "url"),
    [
        ("redis://cache:6379/1", {}, "delayq+redis://cache:6379/1"),
        ("delayq+rediss://cache/1", {}, "delayq+rediss://cache/1"),
        (None, {"CELERY_BROKER_URL": "redis://second/0"}, "delayq+redis://second/0"),
        (
            None,
            {"CELERY_BROKER_URL": "redis://second/0", "DELAYQ_URL": "redis://first/0"},
            "delayq+redis://first/0",
        ),
        ("env:MINE", {"MINE": "redis://:secret@mine/0"}, "delayq+redis://:secret@mine/0"),
    ],
)
def test_the_url_is_that_of_the_option_or_of_the_environment(
    given: str | None, variables: dict[str, str], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert url_of(Access(given)) == url


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("redis://cache/1", "delayq+redis://:s%2Fcret@cache/1"),
        ("redis://app@cache/1", "delayq+redis://app:s%2Fcret@cache/1"),
    ],
)
def test_a_password_by_itself_is_put_into_the_url_where_it_is_opened(
    url: str, whole: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert url_of(Access(url, password="s/cret")) == whole

    monkeypatch.setenv("DELAYQ_PASSWORD", "s/cret")
    access = Access(url)
    assert b"cret" not in pickle.dumps(access)
    assert url_of(access) == whole


@pytest.mark.parametrize("password", ["hunter2", "hunter2/", "hunt/er2", "p@hunter2"])
def test_a_password_in_the_url_is_refused_since_spark_would_show_it(password: str) -> None:
    with pytest.raises(ConfigError, match="has a password") as raised:
        Access.of({"url": f"redis://:{password}@cache/1"})
    assert password not in str(raised.value)


#: An app that is connected somewhere already, to be found by its name.
app = Celery("shop", broker="delayq+redis://its-own/0", set_as_current=False)
DelayQ(app)


def test_an_app_with_a_url_is_as_it_was_afterwards() -> None:
    access, before = Access("redis://other/1", app=f"{__name__}:app"), app._delayq

    assert url_of(Access(app=f"{__name__}:app")) == "delayq+redis://its-own/0"
    with open_client(access) as delayq:
        assert delayq.app is app
        assert app.conf.broker_read_url == app.conf.broker_write_url == "delayq+redis://other/1"
        assert delayq is not before

    assert app.conf.broker_read_url == app.conf.broker_write_url == "delayq+redis://its-own/0"
    assert app._delayq is before


def test_sentinels_of_an_app_each_get_the_password() -> None:
    access = Access(
        "delayq+sentinel://one:26379;sentinel://two:26379", "s/cret", app=f"{__name__}:app"
    )
    whole = "delayq+sentinel://:s%2Fcret@one:26379;sentinel://:s%2Fcret@two:26379"
    assert url_of(access) == whole


@pytest.mark.parametrize(
    ("access", "reason"),
    [
        (Access(), "where is the queue. Give the option url, or set DELAYQ_URL"),
        (Access("env:NOWHERE"), "there is no environment variable NOWHERE here"),
        (Access(app="no.such:app"), "app='no.such:app' cannot be imported here"),
        (Access("sentinel://one:26379"), "name the app that sets it by the option app"),
    ],
)
def test_where_it_cannot_be_found_out_it_is_said_how(access: Access, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason), open_client(access):
        pass
