"""Passwords are nowhere that Spark shows or keeps anything."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.support import TIMEOUT

pytest.importorskip("pyspark")

from tests.integration.spark import jobs
from tests.integration.spark.cluster import SECRETS, Cluster


def page(url: str) -> str:
    try:
        with urlopen(url, timeout=TIMEOUT) as answer:
            return str(answer.read().decode())
    except HTTPError as error:
        return f"{error.code}"


def pages(start: str) -> Iterator[tuple[str, str]]:
    """Yield all web pages that can be reached from one by links, of the same server."""
    server = re.match(r"http://[^/]+", start)
    assert server is not None
    todo, seen = [start], {start}
    while todo:
        url = todo.pop()
        text = page(url)
        yield url, text
        for link in re.findall(r"href=[\"']([^\"'#]+)", text):
            found = link if link.startswith("http") else f"{server[0]}/{link.lstrip('/')}"
            plain = found.replace("&amp;", "&")
            wanted = plain.startswith(server[0]) and not re.search(
                r"/static/|kill|threadDump|heapHistogram|\.(js|css|png)|[?&](\w+\.)?(sort|page)",
                plain,
            )
            if wanted and plain not in seen:
                seen.add(plain)
                todo.append(plain)


@pytest.mark.nightly
def test_passwords_are_nowhere(cluster: Cluster, tmp_path: Path) -> None:
    # Given jobs that have used all of them: of the driver, of executors, of the database, and one
    # that is an option, which goes before those of the environment.
    options = {**cluster.options, "password": SECRETS["option"]}
    cluster.do(jobs.write_range, options, 1000)
    cluster.do(jobs.write_range, {**options, "refused": str(tmp_path / "refused")}, 1000)
    cluster.do(jobs.read, options)
    cluster.do(jobs.reconcile_values, cluster.options, 20)
    cluster.do(jobs.stream, options, str(tmp_path))
    explained = cluster.do(jobs.explain, options, 20)
    # Some fail: where nobody listens, and with a password that is wrong.
    told = [
        cluster.fails(jobs.write_range, {**options, "url": "redis://127.0.0.1:1/0"}, 10),
        cluster.fails(jobs.read, {**options, "password": SECRETS["wrong"]}),
    ]

    # When all is looked at that can be seen: plans, errors, logs, events, web pages.
    seen = {"plans": explained, **{f"error {n}": text for n, text in enumerate(told)}}
    for path in cluster.files():
        seen[str(path)] = path.read_text(errors="replace")
    ui = cluster.do(jobs.ui)
    application = re.search(r"app-\d+-\d+", cluster.log)
    assert application is not None
    api = f"{ui}/api/v1/applications/{application[0]}"
    queries = json.loads(page(f"{api}/sql?length=1000"))
    for start in (
        f"{ui}/jobs/",
        *(f"{ui}/SQL/execution/?id={query['id']}" for query in queries),
        *(f"{api}/{name}" for name in ("environment", "sql?length=1000", "stages", "allexecutors")),
    ):
        seen.update(pages(start))

    # Then there is no password in it, but what is there to be seen else.
    found = {
        (where, name) for where, text in seen.items() for name, secret in SECRETS.items()
        if secret in text
    }  # fmt: skip
    assert found == set()
    assert "JDBCRelation" in seen["plans"]
    environment = seen[f"{api}/environment"]
    assert re.search(r'"spark\.executorEnv\.DELAYQ_PASSWORD"\W+\*+\(redacted\)', environment)
    assert {
        f"{ui}/{name}/" for name in ("environment", "executors", "SQL", "stages")
    } <= seen.keys()
    assert "celery_delayq" in seen[f"{ui}/SQL/execution/?id=0"]
    [events] = cluster.events()
    assert "SparkListenerSQLExecutionStart" in seen[str(events)]
    logs = [text for where, text in seen.items() if where.endswith((".log", "stderr"))]
    assert sum(" INFO " in text for text in logs) >= 3
