"""Who may change tasks on the pages of the web. No I/O."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery_delayq.errors import ConfigError

logger = logging.getLogger(__name__)

_HEADER = re.compile(r"[A-Za-z0-9-]+").fullmatch


@dataclass(frozen=True)
class WebRights:
    """The rights that ``DelayQ(app, web_changes=…, web_user_header=…)`` gives.

    Raises
    ------
    ConfigError
        *may_change* cannot be called, or *user_header* is not the name of a header.
    """

    may_change: Callable[[str, Any], bool] | None = None
    user_header: str | None = None

    def __post_init__(self) -> None:
        if self.may_change is not None and not callable(self.may_change):
            raise ConfigError(
                f"web_changes={self.may_change!r}: expected a function of the user's name and the "
                "request, such as lambda user, request: user == 'ops'"
            )
        header = self.user_header
        if header is not None and not (isinstance(header, str) and _HEADER(header)):
            raise ConfigError(
                f"web_user_header={header!r}: expected the name of a header, such as "
                "'X-Forwarded-User'"
            )

    def reason_against(self, user: str, request: Any) -> str:
        """Return why a user may not change anything; ``""`` if the user may.

        Parameters
        ----------
        user : str
            The name of the user; ``""`` without a login.
        request : Any
            The request, for the function of the app.
        """
        if self.may_change is None:
            return "The app allows no changes here: DelayQ(app, web_changes=…) says who may."
        if not user:
            return (
                "Changes need a login, so that the log can say who made them: start Flower with "
                "--basic_auth, or delayq web with --auth-file."
            )
        try:
            is_allowed = self.may_change(user, request)
        except Exception:
            logger.exception("web_changes failed for user %r, who may change nothing", user)
            is_allowed = False
        return "" if is_allowed is True else f"User {user} may not change tasks here."
