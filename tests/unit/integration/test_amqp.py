"""What is hooked into an app, and that the shortcuts taken there change nothing."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.app.amqp import AMQP
from celery.utils.saferepr import saferepr
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq import DelayQ
from celery_delayq.integration import worker_checks
from celery_delayq.integration.amqp import AMQPMixin, plain_repr
from celery_delayq.utils import once
from celery_delayq.webhook import Webhook

PLAIN = st.one_of(st.text(max_size=40), st.integers(), st.floats(), st.booleans(), st.none())
#: Drawn character by character, these would cost more than all else here.
LONG = st.text("ab c", min_size=6, max_size=8).map(lambda text: text * 50)
ANY = st.one_of(PLAIN, st.lists(PLAIN, max_size=2), st.binary(), st.decimals(), st.sets(PLAIN))


@pytest.mark.conformance
@given(
    st.one_of(
        st.lists(ANY, max_size=4),
        st.lists(ANY, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=10), ANY, max_size=4),
        st.lists(LONG, max_size=4),
    )
)
def test_the_short_way_to_a_repr_gives_what_celery_gives_or_nothing(value: Any) -> None:
    short = plain_repr(value)

    assert short is None or short == saferepr(value, AMQP.argsrepr_maxsize, maxlevels=3)


@pytest.mark.parametrize("value", [("abc", 1, None), {"key": 1.5}, [], (True,)])
def test_the_usual_arguments_go_the_short_way(value: Any) -> None:
    assert plain_repr(value) == repr(value)


def test_hooking_in_twice_changes_nothing_more() -> None:
    app = Celery("app", set_as_current=False)
    DelayQ(app)
    first = app.amqp_cls
    DelayQ(app)

    assert app.amqp_cls == first == "celery_delayq.integration.amqp:AMQP"
    assert isinstance(app.amqp, AMQPMixin)


def test_an_app_that_made_its_amqp_before_is_hooked_all_the_same() -> None:
    app = Celery("app", set_as_current=False)
    assert not isinstance(app.amqp, AMQPMixin)
    DelayQ(app)

    assert isinstance(app.amqp, AMQPMixin)


def test_an_amqp_class_of_the_users_own_is_kept_below_ours() -> None:
    class Own(AMQP):
        argsrepr_maxsize = 7

    app = Celery("app", amqp=Own, set_as_current=False)
    DelayQ(app)

    assert app.amqp.argsrepr_maxsize == 7
    assert isinstance(app.amqp, AMQPMixin)


def test_a_hooked_app_can_be_pickled_for_children_that_are_spawned() -> None:
    app = Celery("app", set_as_current=False)
    DelayQ(app)

    assert isinstance(pickle.loads(pickle.dumps(app)).amqp, AMQPMixin)


@pytest.mark.parametrize(("installed", "warnings"), [(True, 0), (False, 1)])
def test_a_worker_that_cannot_send_webhooks_says_so_when_it_starts(
    installed: bool,
    warnings: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    once.warn_once.cache_clear()
    if not installed:
        monkeypatch.setattr(worker_checks, "find_spec", lambda _name: None)
    app = Celery("app", broker="delayq+redis://", set_as_current=False)
    DelayQ(app, webhook=Webhook(allow=["hooks.example.com"]))

    with app.connection_for_write() as connection:
        worker_checks.check_worker(SimpleNamespace(app=app, connection=connection))

    assert caplog.text.count('pip install "celery-delayq[webhook]"') == warnings
