"""``python -m tests.site [--links | --add SITE] [FOLDER]``: build it; a warning is an error."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

from celery_delayq import __version__
from tests.site import pages, versions

CONFIGURATION = Path(__file__).parent


def build(folder: Path, builder: str = "html") -> int:
    """Build the site below a folder, in ``html``, and return the exit code of Sphinx."""
    began = time.monotonic()
    source, output = folder / "source", folder / builder
    for each in (source, output):
        shutil.rmtree(each, ignore_errors=True)
    pages.write(source)
    command = [sys.executable, "-m", "sphinx", "-b", builder, "-c", str(CONFIGURATION)]
    # --keep-going: all warnings at once, not only the first.
    options = ["--fail-on-warning", "--keep-going", "--quiet", "--jobs", "auto"]
    code = subprocess.run([*command, *options, str(source), str(output)], check=False).returncode
    if code == 0 and builder == "html":
        pages.write_llms(output)
        print(f"{output}/index.html, in {time.monotonic() - began:.0f} s")
    return code


def main() -> int:
    """Read the command line and build."""
    parser = argparse.ArgumentParser(description="Build the site. Each warning is an error.")
    parser.add_argument("--links", action="store_true", help="only ask whether all links answer")
    parser.add_argument("folder", nargs="?", type=Path, default=pages.ROOT / "build" / "site")
    parser.add_argument(
        "--add", metavar="SITE", type=Path, help="folder of a site to which this version is added"
    )
    given = parser.parse_args()
    code = build(given.folder, "linkcheck" if given.links else "html")
    if code == 0 and given.add:
        versions.add(given.folder / "html", __version__, given.add)
    return code


if __name__ == "__main__":
    sys.exit(main())
