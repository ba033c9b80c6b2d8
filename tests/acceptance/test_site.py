"""The site is built as a reader gets it: no warning, all pages, all public names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.site import pages, reference
from tests.support import api_page
from tests.support.cli import leaves

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the pages."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "tests.site", str(folder)]
    done = subprocess.run(command, cwd=pages.ROOT, capture_output=True, text=True, check=False)
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
