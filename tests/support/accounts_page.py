"""Write the rules into ``docs/accounts.md``: ``python -m tests.support.accounts_page``."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from celery_delayq.admin.accounts import Role, rules

PAGE = Path(__file__).parents[2] / "docs" / "accounts.md"

ROLES: tuple[Role, ...] = ("producer", "worker", "operator")


def with_rules(text: str) -> str:
    """Return the page with the rules that the code has now."""
    for role in ROLES:
        line = f"ACL SETUSER {role} on >PASSWORD {' '.join(rules(role, ['celery']))}"
        lines = textwrap.wrap(line, 100, break_long_words=False, break_on_hyphens=False)
        shown = " \\\n  ".join(lines)
        block = re.compile(rf"```\nACL SETUSER {role} .*?\n```", re.DOTALL)
        before, after = block.split(text)
        text = f"{before}```\n{shown}\n```{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(with_rules(PAGE.read_text("utf-8")), "utf-8")
