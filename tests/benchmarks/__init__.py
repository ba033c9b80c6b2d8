"""Compare stock Celery on Redis with this package: ``python -m tests.benchmarks``.

Both sides run in the same run, on the same Redis server process, each in its own database. A
measurement is one function in ``measurements/``. It declares its rows (name, unit, direction,
target) and returns the values of both sides. No other file lists measurements.
"""
