"""Build the source distribution and the wheel, and check what is in them.

Both are built from a copy of the files that git knows, so that nothing else of the folder gets in.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.message import EmailMessage
from email.parser import Parser
from email.policy import default
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "celery_delayq"

#: Files of the package that are not Python, by the end of their names.
DATA = (".lua", ".html", ".css", ".js", "py.typed")
#: Files of the source distribution beside the package.
BESIDE = {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml", ".gitignore"}


def tracked_files() -> list[str]:
    """Return the files that git knows, or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return sorted(name for name in done.stdout.split("\0") if name and (ROOT / name).is_file())


def build(folder: Path) -> tuple[Path, Path]:
    """Build in a new folder; return the source distribution and the wheel."""
    source, target = folder / "source", folder / "dist"
    for name in tracked_files():
        copy = source / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target)]
    env = {key: value for key, value in os.environ.items() if key != "SOURCE_DATE_EPOCH"}
    done = subprocess.run(
        [*command, str(source)], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"the packages cannot be built:\n{done.stdout}{done.stderr}")
    return next(target.glob("*.tar.gz")), next(target.glob("*.whl"))


def files_of(path: Path) -> dict[str, bytes]:
    """Return the contents of the files of a package, by name."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    with tarfile.open(path) as archive:
        found = {}
        for member in archive.getmembers():
            content = archive.extractfile(member)
            if content is not None:
                found[member.name.partition("/")[2]] = content.read()
        return found


def metadata_of(wheel: Path) -> EmailMessage:
    """Return the headers of a wheel's metadata."""
    name = next(name for name in files_of(wheel) if name.endswith(".dist-info/METADATA"))
    return Parser(policy=default).parsestr(files_of(wheel)[name].decode())


def problems_of(sdist: Path, wheel: Path) -> Iterator[str]:
    """Yield a sentence for each file that is missing, or that should not be there."""
    sources = {
        name
        for name in tracked_files()
        if name.startswith(f"{PACKAGE}/") and not name.endswith(".md")
    }
    in_wheel, in_sdist = {*files_of(wheel)}, {*files_of(sdist)}
    info = {name for name in in_wheel if ".dist-info/" in name}
    kinds = {name.rpartition(".dist-info/")[2] for name in info}
    expected = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    for what, found, wanted in (
        ("the wheel", in_wheel - info, sources),
        ("the metadata of the wheel", kinds, expected),
        ("the source distribution", in_sdist - {".gitignore"}, sources | BESIDE - {".gitignore"}),
    ):
        for name in sorted(wanted - found):
            yield f"{name} is missing in {what}"
        for name in sorted(found - wanted):
            yield f"{name} should not be in {what}"
    for end in DATA:
        if not any(name.endswith(end) for name in in_wheel):
            yield f"the wheel has no {end}"
