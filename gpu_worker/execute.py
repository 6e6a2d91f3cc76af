"""Runs one batch: claim it, generate, commit outputs as they finish, finish it.

Killed at any line, nothing is lost: until an output is committed its request belongs to this session's batch, and a
dead session's batches become pending again.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from broker.closing import close_job
from broker.errors import BrokerUnavailableError, JobNotFoundError
from broker.ledger import BatchRecord, ClaimedBatch
from broker.messages import Output, Request, failed_output
from celery import Celery

from gpu_worker.engine_loop import as_output
from gpu_worker.runtime import Runtime

logger = logging.getLogger(__name__)

ReplyT = TypeVar("ReplyT")

RETRY_S = (0.1, 0.2, 0.5, 1.0)


def execute_batch(app: Celery, runtime: Runtime, batch_id: str, job_id: str) -> None:
    """Run a batch if it is this session's and not already in hand; otherwise the message is stale and harmless."""
    if not runtime.take(batch_id):
        logger.info("batch %s is already in hand", batch_id)
        return
    try:
        claimed = insist(lambda: runtime.store.ledger.claim(batch_id, job_id, runtime.session_id))
        if claimed is None:
            logger.info("batch %s is not ours any more", batch_id)
            return
        _Batch(app, runtime, batch_id, job_id).run(claimed)
    finally:
        runtime.drop(batch_id)


def insist(call: Callable[[], ReplyT]) -> ReplyT:
    """Call until Redis answers: outputs are held for as long as an outage lasts."""
    attempt = 0
    while True:
        try:
            return call()
        except BrokerUnavailableError as error:
            if attempt == 0:
                logger.warning("waiting for the broker: %s", error)
            time.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])
            attempt += 1


class _Batch:
    def __init__(self, app: Celery, runtime: Runtime, batch_id: str, job_id: str) -> None:
        self._app = app
        self._runtime = runtime
        self._ledger = runtime.store.ledger
        self._batch_id = batch_id
        self._job_id = job_id

    def run(self, claimed: ClaimedBatch) -> None:
        if claimed.cancelled:
            outputs = [self._cancelled(index) for index, _ in claimed.requests]
            self._commit(outputs)
        else:
            self._generate(dict(claimed.requests))
        insist(lambda: self._ledger.finish(self._batch_id, self._runtime.session_id))

    def _generate(self, requests: dict[int, Request]) -> None:
        worker = self._runtime.worker
        inbox = self._runtime.loop.submit(self._batch_id, tuple(requests.items()))
        for completed in inbox.rounds():
            self._commit([as_output(index, item, requests[index], worker) for index, item in completed])
            if self._runtime.drain_is_over:
                self._give_back()
                return

    def _give_back(self) -> None:
        self._runtime.loop.withdraw(self._batch_id)
        batches = insist(lambda: self._ledger.batches(self._runtime.session_id))
        for batch in batches:
            if batch.id == self._batch_id:
                self._release(batch)

    def _release(self, batch: BatchRecord) -> None:
        released = insist(lambda: self._ledger.release(batch, count_attempt=False))
        logger.warning("drain: gave %d requests of batch %s back", released, batch.id)

    def _cancelled(self, index: int) -> Output:
        return failed_output(index, "cancelled", "the job was cancelled", worker_id=self._runtime.worker)

    def _commit(self, outputs: Sequence[Output]) -> None:
        if not outputs:
            return
        try:
            result = insist(
                lambda: self._ledger.commit(self._batch_id, self._job_id, self._runtime.session_id, outputs)
            )
        except JobNotFoundError:
            logger.info("job %s is gone; %d outputs dropped", self._job_id, len(outputs))
            return
        if result.job_done:
            self._close_job()

    def _close_job(self) -> None:
        try:
            close_job(self._app, self._runtime.store, self._job_id)
        except Exception:
            # The driver finds the job in `closing` and does it again.
            logger.exception("could not close job %s", self._job_id)
