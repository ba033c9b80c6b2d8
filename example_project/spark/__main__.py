"""``python -m example_project.spark``."""

from __future__ import annotations

from example_project.spark.demo import main

if __name__ == "__main__":
    main(prog_name="python -m example_project.spark")
