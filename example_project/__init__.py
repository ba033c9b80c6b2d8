"""Departure reminders for the flights that left New York in 2013, as an ordinary Celery project.

``python -m example_project`` runs one day of them in a minute, moves the reminders of the late
ones, cancels those of the cancelled ones, and checks that every other reminder ran once, that none
ran early, that each was told by webhook to a receiver that fails at times, and that a periodic task
has reported on each hour. `app`, `tasks`, `publish`, `changes` and `replay` are what a project of
your own would have; the rest is the data, the plan and the bookkeeping of the demonstration.
"""
