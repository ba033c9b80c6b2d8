"""``python -m example_project``."""

from __future__ import annotations

from example_project.demo import main

if __name__ == "__main__":
    main(prog_name="python -m example_project")
