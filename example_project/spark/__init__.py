"""A year of departure reminders through Spark: ``python -m example_project.spark``.

All flights of 2013 go from CSV through Spark into the queue. The news moves some and cancels
others, and ordinary workers run one day of them. Source, queue and history must agree. Your own
project would have `app` and `pipeline`. `source` and `placing` are the data and their time; the
other modules are the demonstration.
"""
