"""Parts of a store are found in one way, and few modules know of a Redis Cluster."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import celery_delayq
from celery_delayq.store.scripting.runner import Part, StorePart
from celery_delayq.store.store import Store

PACKAGE = Path(celery_delayq.__file__).parent

#: What only a module about clusters asks of the stores of a broker.
ABOUT_CLUSTERS = {"by_tag", "has_one", "only", "own", "without"}

#: Those that do so, beside store/cluster and transport/cluster.
KNOWN = {
    "admin/masters_away.py": "masters that are away",
    "admin/doctor/__init__.py": "checks of each master",
    "admin/hash_tags.py": "what an interrupted call wrote to some stores only",
    "admin/stock_migration.py": "stock Celery has no cluster",
    "periodic/importers/redbeat.py": "RedBeat has no entries on a cluster",
    "periodic/places.py": "in which store a periodic entry is",
    "store/session.py": "the store of a single Redis",
    "transport/loop/publisher.py": "an event loop publishes to a single Redis",
    "web/pages/fleet.py": "dispatchers of each master",
}


def test_each_part_of_a_store_is_an_attribute_with_the_name_of_its_module() -> None:
    parts = {name: each.kind for name, each in vars(Store).items() if isinstance(each, Part)}
    modules = [path.stem for path in (PACKAGE / "store").glob("*.py")]
    there = {
        module: part
        for module in modules
        for part in vars(import_module(f"celery_delayq.store.{module}")).values()
        if isinstance(part, type)
        and part.__module__ == f"celery_delayq.store.{module}"
        and issubclass(part, StorePart)
        and not part.__subclasses__()
    }

    assert parts == there


def test_only_modules_about_clusters_ask_for_hash_tags() -> None:
    asking = set()
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE).as_posix()
        if "cluster" in path.parent.name or place == "store/stores.py":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if (
                isinstance(node, ast.Attribute)
                and node.attr in ABOUT_CLUSTERS
                and ast.unparse(node.value).endswith("stores")
            ):
                asking.add(place)

    assert not asking - {*KNOWN}
