"""Write the rules into ``docs/accounts.md`` and ``contrib/acl/users.acl``:
``python -m tests.support.accounts_page``.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from celery_delayq.admin.accounts import ROLES, rules

ROOT = Path(__file__).parents[2]
PAGE, ACL_FILE = ROOT / "docs" / "accounts.md", ROOT / "contrib" / "acl" / "users.acl"


def acl_file() -> str:
    """Return the rules as Redis reads them from its ``aclfile``, which has no comments."""
    lines = ["user default off", "user admin on >ADMIN_PASSWORD ~* &* +@all"]
    for role in ROLES:
        password = f">{role.upper()}_PASSWORD"
        lines.append(f"user {role} on {password} {' '.join(rules(role, ['celery']))}")
    return "".join(f"{line}\n" for line in lines)


def with_rules(text: str) -> str:
    """Return the page with the rules of the code."""
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
    ACL_FILE.write_text(acl_file(), "utf-8")
