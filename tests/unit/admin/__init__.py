"""Tests of :mod:`celery_delayq.admin` without a server."""
