"""Departure reminders for the flights that left New York in 2013, as an ordinary Celery project.

``python -m example_project`` runs one day of reminders in a minute. It moves the reminders of late
flights and cancels those of cancelled flights. It checks that every other reminder ran once and not
early, that a webhook reported each to a receiver that sometimes fails, and that a periodic task
reported on each hour. Your own project would have `app`, `tasks`, `publish`, `changes` and
`replay`. The other modules are the data, the plan and the records of the demonstration.
"""
