"""The `stoker` command."""

import sys

from driver.cli.signals import interrupt_for_certain

EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 something failed, 2 usage, 3 no broker, 130 interrupted."""
    interrupt_for_certain()
    try:
        # Loading the commands takes a second or more, and Ctrl-C may come meanwhile.
        from driver.cli.app import run

        run()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
