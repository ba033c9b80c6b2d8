"""Build and check the packages of a release, and tag it: ``make release``.

Nothing is tagged while ``PLACEHOLDERS`` names something that only the owner of the project knows,
while the version is a development version, or while something is not committed. Publishing is done
by ``.github/workflows/release.yml``, for each tag.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from celery_delayq import __version__
from tests.packages import ROOT, build, problems_of
from tests.support.placeholders import PLACEHOLDERS, listed
from tests.support.stored_format import FOLDER, file_of

DIST = ROOT / "dist"
TAG = f"v{__version__}"


def build_twice() -> list[Path]:
    """Build in two folders, and return the files in ``dist`` if both builds are equal."""
    with TemporaryDirectory() as first, TemporaryDirectory() as second:
        one, other = build(Path(first)), build(Path(second))
        for path, again in zip(one, other, strict=True):
            if path.read_bytes() != again.read_bytes():
                sys.exit(f"{path.name} differs between two builds of the same files")
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        return [Path(shutil.copy(path, DIST)) for path in one]


def reasons_not_to_tag() -> Iterator[str]:
    """Yield a sentence for each reason."""
    if listed():
        yield f"{PLACEHOLDERS.name} is not empty: fill in what it lists, then run {_WRITE}"
    if not re.fullmatch(r"\d+\.\d+\.\d+", __version__):
        yield f"{__version__} is no version of a release: change celery_delayq/__init__.py"
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    if f"\n## {__version__}" not in changelog:
        yield f"CHANGELOG.md has no part '## {__version__}'"
    if not file_of(__version__).exists():
        yield f"{FOLDER.relative_to(ROOT)} has no file of {__version__}: run make format-file"
    if _git("status", "--porcelain"):
        yield "there are changes that are not committed"
    if _git("tag", "--list", TAG):
        yield f"there is a tag {TAG} already"


_WRITE = "python -m tests.support.placeholders"


def _git(*args: str) -> str:
    done = subprocess.run(["git", *args], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _run(*command: str) -> None:
    print("==", *command, flush=True)
    if subprocess.run([sys.executable, "-m", *command], cwd=ROOT).returncode:
        sys.exit(f"failed: {' '.join(command)}")


def main() -> None:
    """Build, check and tag."""
    packages = build_twice()
    if problems := [*problems_of(*packages)]:
        sys.exit("\n".join(problems))
    _run("twine", "check", "--strict", *map(str, packages))
    _run("pytest", "-q", "-m", "full or nightly", "tests/acceptance/test_packages.py")
    for path in packages:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size:,} bytes  sha256 {digest}")
    if reasons := [*reasons_not_to_tag()]:
        sys.exit(f"both packages are good, but {TAG} is not tagged:\n- " + "\n- ".join(reasons))
    _git("tag", "--annotate", TAG, "--message", f"celery_delayq {__version__}")
    print(f"tagged {TAG}: git push origin {TAG} publishes it")


if __name__ == "__main__":
    main()
