"""Pages of delayed tasks: the tab in Flower, and the same pages alone.

A page is a function without HTML that returns a view (:mod:`~celery_delayq.web.pages`), and a
template that shows the view. Handlers (:mod:`~celery_delayq.web.handler`) are the same in both.
"""
