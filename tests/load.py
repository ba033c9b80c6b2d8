"""Keep the machine busy beside a command: ``python -m tests.load 12 make test``.

The number says how many processes compute for nothing for as long as the command runs. The exit
code is the command's. Without a command they compute until Ctrl+C. With it tests show that none of
them depends on how fast the machine is.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

USAGE = "usage: python -m tests.load PROCESSES [command ...]"

#: A busy process ends with its pipe: also when this one is killed.
BUSY = """
import sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), __import__("os")._exit(0)), daemon=True).start()
while True:
    pass
"""


@contextmanager
def load(processes: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Let so many processes compute meanwhile."""
    command = [sys.executable, "-c", BUSY]
    busy = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(processes)]
    try:
        yield busy
    finally:
        for each in busy:
            each.kill()
            each.communicate()


def main(arguments: list[str]) -> int:
    """Run a command beside busy processes and return its exit code."""
    if not arguments or not arguments[0].isdecimal():
        sys.exit(USAGE)
    with load(int(arguments[0])) as busy:
        try:
            if arguments[1:]:
                return subprocess.call(arguments[1:])
            return max((each.wait() for each in busy), default=0)
        except KeyboardInterrupt:
            return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
