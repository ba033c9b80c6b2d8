"""A counter never gets smaller under one epoch, whatever Redis says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.metrics.from_redis import Epochs


def test_a_smaller_value_begins_an_epoch() -> None:
    epochs = Epochs()

    names = [
        epochs.name("q", "a", values, now)
        for now, values in enumerate([[5, 5], [6, 5], [6, 4], [7, 9], [1, 9]])
    ]

    assert names == ["a", "a", "a.2", "a.2", "a.4"]


def test_owners_and_sources_have_epochs_of_their_own() -> None:
    epochs = Epochs()

    assert epochs.name("q", "a", [5], 1) == "a"
    assert epochs.name("p", "a", [4], 1) == "a"
    assert epochs.name("q", "b", [0], 1) == "b"
    assert epochs.name("q", "a", [4], 2) == "a.2"


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 3), min_size=2, max_size=2)))
)
def test_no_series_gets_smaller(told: list[tuple[str, list[int]]]) -> None:
    epochs, exported = Epochs(), dict[str, list[int]]()

    for now, (source, values) in enumerate(told):
        name = epochs.name("q", source, values, now)
        before = exported.get(name, values)
        assert all(value >= old for value, old in zip(values, before, strict=True))
        exported[name] = values


def test_owners_that_went_away_are_forgotten() -> None:
    epochs = Epochs()
    epochs.name("gone", "a", [5], 1)
    epochs.name("q", "a", [5], 1)

    epochs.keep({"q", "others"})

    assert epochs.name("gone", "a", [0], 2) == "a"
    assert epochs.name("q", "a", [0], 2) == "a.2"
