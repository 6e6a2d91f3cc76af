"""Runs the embedded server for its owner: `python -m broker.embedded_guard [--temporary] COMMAND …`.

When the owner is gone, nobody else removes the server's temporary folder.
"""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

from broker.guard import run_guarded

TEMPORARY = "--temporary"  # nobody keeps the folder of the configuration, which is the command's last word


def main(arguments: list[str]) -> int:
    """Run the server until it ends, a SIGTERM comes, or the owner is gone. Returns its exit code."""
    is_temporary = arguments[0] == TEMPORARY
    command = arguments[int(is_temporary) :]
    ended = run_guarded(command, subprocess.Popen.send_signal, if_killed=signal.SIGTERM)
    if is_temporary and ended.orphaned:
        shutil.rmtree(Path(command[-1]).parent, ignore_errors=True)
    return ended.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
