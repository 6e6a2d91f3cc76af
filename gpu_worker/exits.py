"""How a worker process ends, and what its exit code tells the supervisor."""

import logging
import os
import signal
from typing import NoReturn

logger = logging.getLogger(__name__)

EXIT_ENGINE = 70  # EX_SOFTWARE of sysexits.h: the engine is lost
EXIT_FENCED = 75  # EX_TEMPFAIL: the session was declared dead; a new one may start
EXIT_NAME_TAKEN = 76  # another live worker has the name
EXIT_CONFIGURATION = 78  # EX_CONFIG: starting again would fail again


def end_process(code: int, reason: str) -> NoReturn:
    """End the process at once: nothing that it still holds may be waited for."""
    logger.error("%s", reason)
    logging.shutdown()
    os._exit(code)


def describe_exit(code: int) -> str:
    """An exit code in words: `exit code 70`, `SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
