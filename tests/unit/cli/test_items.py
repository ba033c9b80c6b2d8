"""Each kind of items says why an item was not changed, whatever the outcome."""

from __future__ import annotations

import pytest

from celery_delayq.cli.commands.dead_letters.tables import DEAD_LETTERS
from celery_delayq.cli.commands.show import ENTRIES
from celery_delayq.cli.items import SelectedKind
from celery_delayq.model.scheduled import Outcome


@pytest.mark.parametrize("outcome", [each for each in Outcome if not each])
@pytest.mark.parametrize("kind", [ENTRIES, DEAD_LETTERS], ids=lambda kind: kind.many)
def test_each_outcome_has_its_reason(kind: SelectedKind, outcome: Outcome) -> None:
    assert kind.reason(outcome)
