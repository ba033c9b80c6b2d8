"""The commands of ``celery -A app delayq``: ``_MODULES`` in ``cli`` names their modules."""
