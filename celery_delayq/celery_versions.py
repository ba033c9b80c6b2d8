"""The releases of Celery that the changes fit. Importing this module refuses an older one.

The package imports it first: with an older Celery other imports fail with errors that do not say
why.
"""

from __future__ import annotations

import celery

#: The oldest Celery whose tasks and workers the changes fit.
MIN_CELERY = (5, 5)

#: The newest minor version of Celery on which the tests run (``make nightly``).
NEWEST_TESTED_CELERY = (5, 7)

if celery.VERSION < MIN_CELERY:
    raise ImportError(
        f"celery_delayq needs Celery {'.'.join(map(str, MIN_CELERY))} or newer, but Celery "
        f'{celery.__version__} is installed: pip install --upgrade "celery>=5.5,<6"'
    )
