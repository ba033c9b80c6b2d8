"""Departure reminders for the flights that left New York in 2013, as an ordinary Celery project.

``python -m example_project`` runs one day of them in a minute and checks that every
reminder ran once and none ran early. `app` and `tasks` are what a project of your own
would have; the rest is the data, the plan and the bookkeeping of the demonstration.
"""
