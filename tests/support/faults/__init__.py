"""Real faults for real workers, and a judge.

===============  =================================================================================
`ledger`         where tasks record their runs: a second Redis without faults
`checker`        the judge: compares promises, runs, tasks that are left, and killed processes
`leftovers`      tasks that are left in the broker, by state
`stage`          broker, ledger, proxy, workers and dispatchers of one test
`producer`       publishes tasks and records its promises
`killer`         kills and stops processes at seeded random moments
`clocks`         a process with a wrong clock
===============  =================================================================================

The tests are ``tests/acceptance/test_faults_*.py``; ``python -m tests.soak`` runs their long forms.
"""
