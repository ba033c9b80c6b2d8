"""Write ``PLACEHOLDERS``, what only the owner knows: ``python -m tests.support.placeholders``."""

from __future__ import annotations

from pathlib import Path

from tests.packages import tracked_files

ROOT = Path(__file__).parents[2]
PLACEHOLDERS = ROOT / "PLACEHOLDERS"

#: Stands for the owner in addresses and names. Written in two parts, or this file had one.
WORD = "PROJECT-" + "OWNER"

#: Only these files may have placeholders; the tests of the list have the word too.
LOOKED = (".md", ".toml", ".yml", ".yaml")


def listed() -> list[str]:
    """Return each place with a placeholder, as ``file:line: text``."""
    return [
        f"{name}:{number}: {line.strip()}"
        for name in tracked_files()
        if name.endswith(LOOKED)
        for number, line in enumerate((ROOT / name).read_text("utf-8").splitlines(), 1)
        if WORD in line
    ]


def page() -> str:
    """Return the contents of the file."""
    return "".join(f"{line}\n" for line in listed())


if __name__ == "__main__":
    PLACEHOLDERS.write_text(page(), "utf-8")
