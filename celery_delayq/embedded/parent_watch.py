"""Ends child processes when this process is killed."""

from __future__ import annotations

import subprocess
from pathlib import Path

_SCRIPT = """\
read -r word && exit
kill -s "$1" -- "-$2"
tries=0
while kill -s 0 -- "-$2" 2>/dev/null; do
    tries=$((tries + 1))
    [ "$tries" -eq 100 ] && kill -s KILL -- "-$2"
    [ "$tries" -ge 110 ] && break
    sleep 0.1
done
[ -z "$3" ] || rm -rf -- "$3"
"""


class Lifeline:
    """Ends a process group when this Python process is killed.

    A shell reads from a pipe whose other end only this process has. The pipe closes when this
    process ends, also by SIGKILL. A child made by ``os.fork`` has that end, too: then the group
    ends with the last of these processes.

    Parameters
    ----------
    group
        Id of the process group to signal. Its processes are killed after 10 seconds.
    signal_name
        The signal, such as ``"TERM"`` or ``"KILL"``.
    folder
        Folder to remove when the group has ended.
    """

    def __init__(self, group: int, signal_name: str, folder: Path | None = None) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "delayq-lifeline", signal_name, str(group), folder or ""],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # A Ctrl-C or a signal to the group of this process must not end the shell first.
            start_new_session=True,
        )

    def release(self) -> None:
        """End the watch without a signal to the group."""
        try:
            self._shell.communicate(b"released\n")
        except (OSError, ValueError):
            self._shell.kill()
            self._shell.wait()
