"""The Python and console blocks of README and docs do what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.page_blocks import PAGES, ROOT, all_blocks, blocks_of
from tests.support.page_run import WITH_SPARK
from tests.support.skips import need_java, need_rabbitmq

#: Pages with blocks that are run here.
RUN = [page for page in PAGES if any(not (each.not_run or each.run_by) for each in blocks_of(page))]
#: Pages with blocks that need RabbitMQ.
WITH_RABBITMQ = {"rabbitmq"}
#: Least number of blocks for each one with `not run:`.
LEAST_BLOCKS_PER_NOT_RUN = 10


@pytest.mark.full
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page: Path) -> None:
    if page.stem in WITH_RABBITMQ:
        need_rabbitmq()
    if page.stem in WITH_SPARK:
        need_java()
    command = [sys.executable, "-m", "tests.support.page_run", str(page)]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_few_blocks_are_not_run() -> None:
    blocks = all_blocks()
    not_run = [f"{each.page.name}:{each.line}" for each in blocks if each.not_run]

    assert len(blocks) > 90
    assert len(not_run) * LEAST_BLOCKS_PER_NOT_RUN <= len(blocks), not_run


def test_what_runs_a_block_elsewhere_is_a_test_that_names_its_page() -> None:
    elsewhere = [each for each in all_blocks() if each.run_by]

    assert elsewhere
    for each in elsewhere:
        assert each.page.name in (ROOT / each.run_by).read_text("utf-8"), each
