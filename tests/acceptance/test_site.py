"""The site is built as a reader gets it: no warning, all pages, all public names."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from celery_delayq import __version__
from tests.acceptance.browser import Browser
from tests.site import pages, reference, versions
from tests.support import api_page
from tests.support.cli import leaves

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the pages; built once where several processes run the tests."""
    beside_others = "PYTEST_XDIST_WORKER" in os.environ
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if beside_others else base) / "site"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "html" / "llms.txt").exists():
            command = [sys.executable, "-m", "tests.site", str(folder)]
            done = subprocess.run(
                command, cwd=pages.ROOT, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


def test_each_page_of_the_index_is_built(site: Path) -> None:
    listed = [page.name for part in pages.parts(pages.index_of_site()) for page in part.pages]

    assert len(listed) > 40
    assert [name for name in listed if not (site / f"{name}.html").is_file()] == []


def test_each_page_of_llms_txt_is_there(site: Path) -> None:
    links = re.findall(r"\]\((.+?)\)", (site / "llms.txt").read_text("utf-8"))

    assert len(links) > 40
    assert [link for link in links if not (site / link).is_file()] == []


def test_all_public_names_and_commands_are_in_the_reference(site: Path) -> None:
    made = {
        name: (site / "reference" / f"{name}.html").read_text("utf-8") for name in reference.pages()
    }
    names = [
        f"{module}.{name}"
        for module in api_page.MODULES
        for name, _ in api_page.names_of(sys.modules[module])
    ]
    text = "".join(made.values())

    assert [name for name in names if f'id="{name}"' not in text] == []
    ids = {f'id="celery-a-app-delayq-{name.replace(" ", "-")}"' for name, _ in leaves()}
    assert {each for each in ids if each not in made["cli"]} == set()


@pytest.fixture
def versions_url(site: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a site with this version, and an older one that has only its first page."""
    folder = tmp_path / "versions"
    older = tmp_path / "older"
    older.mkdir()
    (older / "index.html").write_text("the older one", "utf-8")
    versions.add(older, "0.0.1", folder)
    versions.add(site, __version__, folder)
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_reader_chooses_another_version(versions_url: str, tmp_path: Path) -> None:
    with Browser(tmp_path / "browser") as browser:
        browser.open(f"{versions_url}/{__version__}/reference/cli.html")
        select = "document.querySelector('.versions select')"
        browser.wait_for(f"{select}.offsetParent !== null")
        listed = browser.evaluate(f"[...{select}.options].map(each => each.value)")
        assert listed == [__version__, "0.0.1"]
        assert browser.evaluate(f"{select}.value") == __version__

        browser.evaluate(f"{select}.value = '0.0.1'; {select}.dispatchEvent(new Event('change'))")

        browser.wait_for("location.pathname === '/0.0.1/' && document.readyState === 'complete'")
        assert "the older one" in browser.text()
