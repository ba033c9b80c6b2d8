"""A site of several versions: each in a folder of its own, and a list of them for the side bar.

The folder of the site can be served as it is. ``versions.json`` lists its versions, the newest
first, for ``static/versions.js``; ``index.html`` leads to the newest one.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from packaging.version import InvalidVersion, Version

LIST = "versions.json"
INDEX = """<!doctype html>
<meta charset="utf-8">
<title>{0}</title>
<meta http-equiv="refresh" content="0; url={0}/">
<a href="{0}/">{0}</a>
"""


def add(built: Path, version: str, site: Path) -> None:
    """Copy the built pages of a version into a site, in place of earlier ones of the version.

    Parameters
    ----------
    built
        Folder with the pages, which stays as it is.
    version
        The version, such as ``"0.1.0"``.
    site
        Folder of the site. It is made if it does not exist.
    """
    shutil.rmtree(site / version, ignore_errors=True)
    shutil.copytree(built, site / version)
    found = versions_in(site)
    (site / LIST).write_text(json.dumps(found) + "\n", "utf-8")
    released = [each for each in found if not Version(each).is_prerelease]
    (site / ".nojekyll").touch()  # or GitHub Pages leaves out folders such as _static
    (site / "index.html").write_text(INDEX.format((released or found)[0]), "utf-8")


def versions_in(site: Path) -> list[str]:
    """Return the versions of a site, the newest first. Other folders do not count."""
    found = []
    for folder in site.iterdir():
        try:
            found.append((Version(folder.name), folder.name))
        except InvalidVersion:
            continue
    return [name for _, name in sorted(found, reverse=True)]
