"""What is hooked into an app."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.app.amqp import AMQP

from celery_delayq import DelayQ
from celery_delayq.integration import app_warnings
from celery_delayq.integration.task_messages import AMQPMixin
from celery_delayq.utils import once
from celery_delayq.webhook import Webhook


def test_hooking_in_twice_changes_nothing_more() -> None:
    app = Celery("app", set_as_current=False)
    DelayQ(app)
    first = app.amqp_cls
    DelayQ(app)

    assert app.amqp_cls == first == "celery_delayq.integration.task_messages:AMQP"
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
        monkeypatch.setattr(app_warnings, "find_spec", lambda _name: None)
    app = Celery("app", broker="delayq+redis://", set_as_current=False)
    DelayQ(app, webhook=Webhook(allow=["hooks.example.com"]))

    with app.connection_for_write() as connection:
        app_warnings.check_worker(SimpleNamespace(app=app, connection=connection))

    assert caplog.text.count('pip install "celery-delayq[webhook]"') == warnings
