"""Charts of the pages, of ``delayq plot`` and ``top``, and of Spark's report.

What a chart shows, and its scales, are in :mod:`~celery_delayq.charts.scales`. It is drawn as SVG
by :mod:`~celery_delayq.charts.svg`, and in a terminal by :mod:`~celery_delayq.charts.terminal`.
"""
