"""Metrics for Prometheus: ``celery -A app delayq metrics``.

Needs ``pip install "celery-delayq[metrics]"``. ``docs/metrics.md`` has the list.
"""
