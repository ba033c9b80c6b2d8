"""Which versions are tried together, of which nobody may run all combinations."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple
from importlib.metadata import packages_distributions, requires
from itertools import combinations, product

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.matrix import (
    CELERY,
    COMBINATIONS,
    EVERY_CHANGE,
    IGNORED,
    ROOT,
    SERVERS,
    WITH_RABBITMQ,
    WITHOUT_FAST,
    runs_lua,
    runs_of,
)

KNOWN = (("3.10", "3.11", "3.12", "3.13"), tuple(CELERY), ("oldest", "newest"), tuple(SERVERS))

COLLECT = """
import sys, pytest

class Missing:
    def find_spec(name, *_):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"make matrix does not install {name}")

sys.meta_path.insert(0, Missing)
sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def test_every_version_of_python_celery_and_redis_py_is_in_two_combinations_at_least() -> None:
    found = Counter(version for one in COMBINATIONS for version in astuple(one))

    assert set(found) == {version for versions in KNOWN for version in versions}
    assert min(count for version, count in found.items() if version not in SERVERS) >= 2


def test_for_every_change_each_version_is_tried_once_at_least() -> None:
    tried = {version for one in EVERY_CHANGE for version in astuple(one)}

    # `make test` and `make test-full` run on Valkey 9.
    assert tried == {version for versions in KNOWN for version in versions} - {"valkey9"}
    assert WITH_RABBITMQ in EVERY_CHANGE


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


def test_changes_for_speed_are_left_out_of_one_of_two_runs_of_the_newest_celery() -> None:
    newest = [one for one in COMBINATIONS if one.celery == max(CELERY)]

    assert WITHOUT_FAST in newest
    assert len(newest) > 1


def requirements_of(group: str) -> Iterator[str]:
    """Yield the requirements of a dependency group."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    for each in groups[group]:
        if isinstance(each, str):
            yield each
        else:
            yield from requirements_of(each["include-group"])


def installed_by(*texts: str) -> Iterator[str]:
    """Yield the names of what pip installs for requirements."""
    todo, done = [Requirement(text) for text in texts], set[tuple[str, str]]()
    while todo:
        wanted = todo.pop()
        yield canonicalize_name(wanted.name)
        for extra in {"", *wanted.extras} - {extra for name, extra in done if name == wanted.name}:
            done.add((wanted.name, extra))
            needed = map(Requirement, requires(wanted.name) or [])
            todo += [e for e in needed if not e.marker or e.marker.evaluate({"extra": extra})]


def test_what_is_collected_imports_only_what_is_installed() -> None:
    """Tests that are not chosen are imported all the same."""
    installed = {*installed_by(*requirements_of("matrix")), "pip"}
    missing = {
        package
        for package, names in packages_distributions().items()
        if installed.isdisjoint(map(canonicalize_name, names))
    }
    assert {"pyspark", "django", "pandas"} <= missing
    places = {part for run in runs_of(WITH_RABBITMQ) for part in run if part.startswith("tests/")}
    command = [sys.executable, "-c", f"MISSING = {missing!r}\n{COLLECT}", *places, *IGNORED]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
