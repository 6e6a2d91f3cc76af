"""What the ledger is told of one batch. Every call waits out an outage of Redis, so that outputs are held meanwhile."""

import logging
from collections.abc import Collection, Mapping, Sequence

from celery import Celery

from broker.closing import close_job
from broker.deltas import TextDelta
from broker.errors import BrokerRefusedError, JobNotFoundError
from broker.messages import Output
from broker.patience import Patience
from broker.records import ClaimedBatch
from broker.store import Store

logger = logging.getLogger(__name__)

insist = Patience()


class Account:
    """The ledger's side of a batch that this session has in hand.

    Every call but `publish` raises BrokerRefusedError when Redis will not have what it is told.
    """

    def __init__(self, app: Celery, store: Store, session_id: str, batch_id: str, job_id: str) -> None:
        self._app = app
        self._store = store
        self._ledger = store.ledger
        self._batch_id = batch_id
        self._job_id = job_id
        self._ids = (batch_id, job_id, session_id)

    def claim(self) -> ClaimedBatch | None:
        """Take up the batch; None when it is not this session's (any more)."""
        return insist(lambda: self._ledger.claim(*self._ids))

    def checkpoint(self, tokens: Mapping[int, tuple[int, ...]]) -> None:
        """Save the tokens that requests have so far."""
        if tokens:
            insist(lambda: self._ledger.checkpoint(*self._ids, tokens))

    def publish(self, texts: Collection[TextDelta]) -> None:
        """Send new text to who reads along. No batch fails where Redis will not have it: the outputs bring it."""
        if not texts:
            return
        try:
            insist(lambda: self._ledger.publish(*self._ids, texts))
        except BrokerRefusedError as error:
            logger.warning("text of batch %s was not published: %s", self._batch_id, error)

    def commit(self, outputs: Sequence[Output]) -> None:
        """Store outputs, and the job's result with its last one. The outputs of a job that is gone are dropped."""
        if not outputs:
            return
        try:
            result = insist(lambda: self._ledger.commit(*self._ids, outputs))
        except JobNotFoundError:
            logger.info("job %s is gone; %d outputs dropped", self._job_id, len(outputs))
            self.release([output.index for output in outputs], count_attempt=False)
            return
        if result.job_done:
            self._close_job()

    def release(self, indices: Sequence[int], *, count_attempt: bool) -> int:
        """Make these requests pending again, if there are any. Returns how many are."""
        if not indices:  # to the ledger that would mean all of them
            return 0
        return insist(lambda: self._ledger.release(*self._ids, count_attempt=count_attempt, indices=indices))

    def release_all(self, *, count_attempt: bool) -> int:
        """Make all that is open pending again, and end the batch. Returns how many that are."""
        return insist(lambda: self._ledger.release(*self._ids, count_attempt=count_attempt))

    def finish(self) -> None:
        """End the batch, whose requests are through."""
        batch_id, _, session_id = self._ids
        if insist(lambda: self._ledger.finish(batch_id, session_id)):
            # What is open still was answered elsewhere, or its job is gone; the batch must not hold its place for it.
            self.release_all(count_attempt=False)

    def _close_job(self) -> None:
        try:
            close_job(self._app, self._store, self._job_id)
        except Exception:
            # The driver finds the job in `closing` and does it again.
            logger.exception("could not close job %s", self._job_id)
