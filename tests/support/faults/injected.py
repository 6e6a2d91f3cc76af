"""Faults for whole processes. Each patches one function, before the program that it breaks has started."""

import os
import sys
import time
from pathlib import Path

DIED_UNTOLD = 77
DIED_AT_START = 66


def die_untold():
    """A driver that is killed after it has assigned a batch, and whose message to the worker is lost."""
    from broker.ledger import Ledger

    assign = Ledger.assign

    def assign_and_die(self, *args, **options):
        if assign(self, *args, **{**options, "worker": ""}):
            os._exit(DIED_UNTOLD)
        return 0

    Ledger.assign = assign_and_die


def short_leases():
    """A driver that soon takes a silent client for gone."""
    import driver.reconcile
    import driver.service

    driver.reconcile.ABANDONED_AFTER_MS = 5_000
    driver.service.LEASE_S = 5.0


def renew_often():
    """A client that is heard of often enough for that."""
    import driver.client

    driver.client.RENEW_S = 0.1


def lose_first_message():
    """A worker that takes its first message off the queue and forgets it, without a trace in Redis."""
    from kombu.transport.redis import Transport

    deliver = Transport._deliver

    def lossy(self, message, queue):
        if queue.startswith("gpu."):
            Transport._deliver = deliver
        else:
            deliver(self, message, queue)

    Transport._deliver = lossy


def stop_with_a_message_in_hand():
    """A worker that stands still where its message is in no key of Redis; `E2E_MARK_FILE` appears when it does."""
    from kombu.transport.redis import Transport

    deliver = Transport._deliver

    def stand_still(self, message, queue):
        if queue.startswith("gpu."):
            Path(os.environ["E2E_MARK_FILE"]).touch()
            time.sleep(600)
        deliver(self, message, queue)

    Transport._deliver = stand_still


def fail_everything():
    """A worker on a broken GPU: every request fails at once."""
    from gpu_worker.engine import faults, simulated

    simulated.fault_of = lambda _request: faults.FAIL


def die_at_start():
    """A worker whose process never comes up; its supervisor does."""
    if "gpu_worker.bootstrap" in sys.orig_argv:
        os.write(2, b"libcuda.so.1: cannot open shared object file\n")
        os._exit(DIED_AT_START)
