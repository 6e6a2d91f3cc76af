"""`python -m gpu_worker`: a supervised worker on one device, configured by `STOKER_*` variables."""

import logging
import os
import signal
import sys

from broker import lifeline
from broker.clock import SystemClock
from broker.errors import ConfigurationError, StokerError
from broker.settings import load_broker_settings
from broker.store import Store
from gpu_worker.device import candidates, usable_gpus
from gpu_worker.exits import EXIT_CONFIGURATION
from gpu_worker.nvml import count_gpus
from gpu_worker.settings import load_worker_settings
from gpu_worker.supervisor import EXIT_GIVEN_UP, Supervisor


def main() -> int:
    """Run until stopped. Returns the exit code: 0 stopped or drained, 1 given up, 78 wrong configuration."""
    try:
        return _run()
    except StokerError as error:
        print(f"stoker worker: {error}", file=sys.stderr)
        return EXIT_CONFIGURATION if isinstance(error, ConfigurationError) else EXIT_GIVEN_UP


def _run() -> int:
    settings = load_worker_settings()
    logging.basicConfig(
        level=settings.log_level, stream=sys.stderr, format="%(asctime)s supervisor %(levelname)s %(message)s"
    )
    store = Store(load_broker_settings())
    supervisor = Supervisor(store, settings, SystemClock(), os.environ)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: supervisor.stop())
    lifeline.watch(os.environ, supervisor.abandon)
    gpus = usable_gpus(count_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    try:
        return supervisor.run(candidates(settings.device, settings.worker_name, gpus))
    finally:
        store.close()


if __name__ == "__main__":
    sys.exit(main())
