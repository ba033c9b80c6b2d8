"""Which versions are tried together, of which nobody may run all combinations."""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple
from itertools import combinations, product

from tests.matrix import CELERY, COMBINATIONS, SERVERS, runs_lua

KNOWN = (("3.10", "3.11", "3.12", "3.13"), tuple(CELERY), ("oldest", "newest"), tuple(SERVERS))


def test_every_version_of_python_celery_and_redis_py_is_in_two_combinations_at_least() -> None:
    found = Counter(version for one in COMBINATIONS for version in astuple(one))

    assert set(found) == {version for versions in KNOWN for version in versions}
    assert min(count for version, count in found.items() if version not in SERVERS) >= 2


def test_eight_runs_try_most_pairs_of_versions() -> None:
    """Eight have room for 48 pairs, of 71 that there are."""
    possible = {pair for one, other in combinations(KNOWN, 2) for pair in product(one, other)}
    tried = {pair for one in COMBINATIONS for pair in combinations(astuple(one), 2)}

    assert len(COMBINATIONS) == len(set(COMBINATIONS)) <= 8
    assert tried <= possible
    assert (len(tried), len(possible)) == (46, 71)


def test_scripts_run_once_on_every_server_and_with_both_clients() -> None:
    chosen = [one for one in COMBINATIONS if runs_lua(one)]

    assert sorted(one.server for one in chosen) == sorted(SERVERS)
    assert {one.redis_py for one in chosen} == {"oldest", "newest"}
