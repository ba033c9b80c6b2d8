"""Nodes of RabbitMQ: how they start, and what Erlang says of them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_delayq.embedded.rabbitmq import EmbeddedRabbitMQ
from celery_delayq.errors import EmbeddedServerError
from celery_delayq.testing import wait_until
from tests.support import TIMEOUT
from tests.support.skips import need_rabbitmq

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[EmbeddedRabbitMQ]:
    need_rabbitmq()
    with EmbeddedRabbitMQ(nodes=2) as broker:
        yield broker


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="others have one loopback address")
def test_no_client_has_the_address_from_which_nodes_and_rabbitmqctl_connect(
    two_nodes: EmbeddedRabbitMQ,
) -> None:
    """RabbitMQ 3.10 ends its management API if a client has the same address and port."""
    peers = "".join(
        two_nodes.control("eval", "net_kernel:nodes_info().", number=number) for number in (0, 1)
    )

    # Two calls of rabbitmqctl and one node that connected to the other, which listens.
    assert (peers.count("{127,0,0,2}"), peers.count("{127,0,0,1}")) == (3, 1)


@pytest.mark.nightly
def test_a_node_that_ends_while_the_others_start_is_started_again(
    two_nodes: EmbeddedRabbitMQ,
) -> None:
    two_nodes.stop()
    before = two_nodes.log(1)

    with ThreadPoolExecutor(1) as thread:
        starting = thread.submit(two_nodes.start)
        wait_until(lambda: two_nodes.log(1) not in ("", before), TIMEOUT, "it starts")
        two_nodes.kill(1)
        starting.result()

    assert [each["running"] for each in two_nodes.ask("GET", "nodes")] == [True, True]


def test_erlang_is_evaluated_with_and_without_erl_call(
    delayq_rabbitmq_server: EmbeddedRabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    expression = 'N = 20 + 1, {N, "a \\"b\\"", <<"x">>}'
    values = [delayq_rabbitmq_server.evaluate(expression)]
    with pytest.raises(EmbeddedServerError, match="badarith"):
        delayq_rabbitmq_server.evaluate("1 / 0")
    which = shutil.which
    monkeypatch.setattr("shutil.which", lambda name: None if name == "erl_call" else which(name))
    values.append(delayq_rabbitmq_server.evaluate(expression))

    assert values == ['{21,"a \\"b\\"",<<"x">>}'] * 2
