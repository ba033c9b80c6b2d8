"""The short way to the text of arguments gives the text that Celery makes."""

from __future__ import annotations

from typing import Any

import pytest
from celery.app.amqp import AMQP
from celery.utils.saferepr import saferepr
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.utils.plain_repr import plain_repr

LIMIT = AMQP.argsrepr_maxsize
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
    short = plain_repr(value, LIMIT)

    assert short is None or short == saferepr(value, LIMIT, maxlevels=3)


@pytest.mark.parametrize("value", [("abc", 1, None), {"key": 1.5}, [], (True,)])
def test_the_usual_arguments_go_the_short_way(value: Any) -> None:
    assert plain_repr(value, LIMIT) == repr(value)
