"""A year of departure reminders through Spark: ``python -m example_project.spark``.

All flights of 2013 go from CSV through Spark into the queue, the news moves some and cancels
others, ordinary workers run one day of them, and source, queue and history must agree. `app` and
`pipeline` are what a project of your own would have; `source` and `placing` are the data and where
in time it lies, the rest is the demonstration.
"""
