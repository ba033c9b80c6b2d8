"""A delay as hops from delay queue to delay queue: never shorter than asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.errors import InvalidETA
from celery_delayq.transport.amqp.cascade import LEVELS, Delay, Hop, original_headers

UNIT = 25
LONGEST = (4**LEVELS - 1) * UNIT


@given(ms=st.floats(0.001, LONGEST))
def test_its_hops_take_as_long_as_the_delay_and_less_than_a_unit_more(ms: float) -> None:
    delay = Delay.of(ms, UNIT)

    assert delay is not None
    hops = [Hop(int(name.split("-")[-1]), int(digit)) for name, digit in delay.headers().items()]
    assert ms <= sum(hop.units for hop in [delay.entry, *hops]) * UNIT < ms + 2 * UNIT
    assert [hop.level for hop in hops] == [*range(delay.entry.level)]
    assert delay.entry.digit in (1, 2, 3)


@pytest.mark.parametrize(
    ("ms", "entry", "digits"),
    [
        (1, Hop(0, 1), ""),
        (100, Hop(1, 1), "0"),
        (6000, Hop(3, 3), "003"),  # 240 units: 3 * 64 + 3 * 16
    ],
)
def test_its_digits_are_a_queue_and_headers(ms: int, entry: Hop, digits: str) -> None:
    delay = Delay.of(ms, UNIT)

    assert delay is not None
    headers = {f"delayq-digit-{level}": digit for level, digit in enumerate(digits)}
    assert (delay.entry, delay.headers()) == (entry, headers)


@pytest.mark.parametrize("ms", [0, -1, -1e12])
def test_what_is_due_does_not_wait(ms: float) -> None:
    assert Delay.of(ms, UNIT) is None


def test_a_delay_of_more_digits_is_refused() -> None:
    assert Delay.of(LONGEST, UNIT) is not None
    with pytest.raises(InvalidETA, match=r"of 107374182\.376 s .* which is 107374182\.375 s here"):
        Delay.of(LONGEST + 1, UNIT)
    with pytest.raises(InvalidETA, match=r"a delay of 0\.6 s .* max_delay, which is 0\.5 s here"):
        Delay.of(600.0001, UNIT, longest=20)


def test_headers_of_the_way_are_gone_on_arrival() -> None:
    delay = Delay.of(1234, UNIT)
    assert delay is not None
    way = {**delay.headers(), "delayq-target": "", "delayq-due": "2030-01-01", "x-death": []}

    assert original_headers({"id": "a", **way}) == {"id": "a"}
