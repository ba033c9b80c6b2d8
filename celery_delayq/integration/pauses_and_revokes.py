"""Pauses and revokes as a consumer knows them. Each reply of Redis contains their revision."""

from __future__ import annotations

from celery.utils.collections import LimitedSet
from celery.worker import state
from kombu.utils.functional import maybe_list

from celery_delayq.store.store import Store

#: Least capacity of a worker's list of revoked ids. Celery's own limit is 50,000.
MIN_REVOKED_IDS = 1_000_000


#: Cancelled canvases. This process starts none of their tasks.
REVOKED_CANVASES = LimitedSet(maxlen=MIN_REVOKED_IDS)


class Controls:
    """Pauses and revokes at one revision.

    ``leases/acquire.lua`` returns the revision with the messages. A worker therefore knows all
    earlier revokes and pauses before it hands out the messages.
    """

    def __init__(self) -> None:
        self.revision = 0
        #: Names of paused tasks.
        self.paused: frozenset[str] = frozenset()
        self._revoked_until = 0

    def learn(self, store: Store, *, for_worker: bool, expires: float) -> None:
        """Read the changes. A worker also reads the revoked ids.

        Parameters
        ----------
        expires : float
            Seconds for which a worker keeps revoked ids. Celery itself keeps them for three hours.
        """
        controls = store.control.controls()
        if controls.revision < self.revision:
            self._revoked_until = 0
        if for_worker:
            # Redis deletes expired revokes only at the next revoke.
            oldest = store.now_ms() - int(expires * 1000)
            revoked = store.control.revoked(max(self._revoked_until, oldest))
            ids, stamps, canvases, self._revoked_until = revoked
            REVOKED_CANVASES.expires = max(REVOKED_CANVASES.expires or 0, expires)
            REVOKED_CANVASES.update(canvases)
            state.revoked.expires = max(state.revoked.expires or 0, expires)
            state.revoked.maxlen = max(state.revoked.maxlen or 0, MIN_REVOKED_IDS)
            state.revoked.update(ids)
            for stamp in stamps:
                for name, values in stamp.items():
                    known = [*(maybe_list(state.revoked_stamps.get(name)) or ())]
                    new = [value for value in maybe_list(values) or () if value not in known]
                    state.revoked_stamps[name] = known + new
        self.paused = frozenset(controls.tasks)
        self.revision = controls.revision
