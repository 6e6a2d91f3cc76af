"""Runs one batch: claim it, generate, commit outputs as they finish, finish it.

Killed at any line, nothing is lost: until an output is committed its request belongs to this session's batch, and a
dead session's batches become pending again. While Redis is away, generation goes on and outputs are held (`account`).
"""

import contextlib
import logging
import time
from collections.abc import Collection, Mapping

from celery import Celery

from broker.errors import BrokerRefusedError
from broker.messages import Output, OutputError
from broker.records import ClaimedBatch, ClaimedRequest
from gpu_worker import outputs
from gpu_worker.account import Account
from gpu_worker.engine.base import Completion
from gpu_worker.engine.errors import ENGINE_ERROR, OUT_OF_MEMORY
from gpu_worker.in_hand import Ticket
from gpu_worker.inbox import News
from gpu_worker.runtime import Runtime

logger = logging.getLogger(__name__)

CANCELLED = OutputError(code="cancelled", message="the job was cancelled")
DEADLINE_EXCEEDED = OutputError(code="deadline_exceeded", message="the job's deadline passed during generation")


def execute_batch(app: Celery, runtime: Runtime, batch_id: str, job_id: str) -> None:
    """Run a batch if it is this session's and not already in hand; otherwise the message is stale and harmless."""
    ticket = runtime.in_hand.take(batch_id, job_id)
    if ticket is None:
        logger.info("batch %s is already in hand", batch_id)
        return
    account = Account(app, runtime.store, runtime.session_id, batch_id, job_id)
    try:
        claimed = account.claim()
        if claimed is None:
            logger.info("batch %s is not ours any more", batch_id)
        else:
            _Execution(account, runtime, ticket, claimed).run()
    except Exception as error:
        # A fault of ours. The ledger must not go on believing that the batch is being run.
        logger.exception("batch %s failed", batch_id)
        if runtime.is_ready:
            runtime.loop.withdraw_batch(batch_id)
        runtime.fitness.note_failure(job_id, 0, f"{type(error).__name__}: {error}")
        with contextlib.suppress(BrokerRefusedError):  # it was refused before; the batch stays with this session
            account.release_all(count_attempt=True)
    finally:
        runtime.in_hand.drop(ticket)


class _Execution:
    """One claimed batch on its way through the engine."""

    def __init__(self, account: Account, runtime: Runtime, ticket: Ticket, claimed: ClaimedBatch) -> None:
        self._account = account
        self._runtime = runtime
        self._ticket = ticket
        self._claimed = claimed
        self._open = {item.index: item for item in claimed.requests}
        self._end_s = float("inf") if claimed.deadline_s is None else time.monotonic() + claimed.deadline_s
        ticket.cancelled = claimed.cancelled
        ticket.end_s = self._end_s
        ticket.suspects = frozenset(item.index for item in claimed.requests if item.attempts)

    def run(self) -> None:
        worker = self._runtime.worker
        self._account.commit([outputs.unreadable(index, why, worker) for index, why in self._claimed.unreadable])
        if not self._runtime.standing.takes_batches:
            self._release()
            return
        if self._stop_error() is None:
            requests = tuple(self._open.values())
            priority = self._claimed.priority
            self._runtime.loop.submit(self._ticket.batch_id, requests, self._ticket.inbox, priority=priority)
        while self._open:
            if (error := self._stop_error()) is not None:
                self._end_rest(error)
            elif self._runtime.standing.gives_back:
                self._give_rest_back()
                return
            else:
                self._advance()
        self._account.finish()

    def _stop_error(self) -> OutputError | None:
        """Why the batch must end before its requests are through; None while it need not."""
        if self._ticket.cancelled:
            return CANCELLED
        return DEADLINE_EXCEEDED if time.monotonic() >= self._end_s else None

    def _advance(self) -> None:
        """Wait for news of the engine and put it into the ledger."""
        wait_s = self._end_s - time.monotonic()
        news = self._ticket.inbox.take(None if wait_s == float("inf") else max(wait_s, 0.0))
        self._record(news)
        if recalled := news.recalled & self._open.keys():
            self._give_back(recalled)

    def _record(self, news: News) -> None:
        self._commit_completed(news.completed)
        self._account.checkpoint(news.saved)
        self._account.publish(news.texts.values())

    def _commit_completed(self, completed: Mapping[int, Completion]) -> None:
        again: list[int] = []
        ready: list[Output] = []
        for index, completion in completed.items():
            item = self._open.pop(index, None)
            if item is None:  # it ended in the moment in which it was given back, and runs elsewhere
                continue
            if self._should_run_elsewhere(item, completion):
                again.append(index)
            else:
                ready.append(outputs.completed(item, completion, self._runtime.worker))
        self._account.commit(ready)
        self._account.release(again, count_attempt=True)

    def _should_run_elsewhere(self, item: ClaimedRequest, completion: Completion) -> bool:
        """Whether a failure may be this worker's fault, and the request has attempts left.

        Where memory was short another worker may have more. That says nothing against this one, which does its best.
        """
        error = completion.error
        if error is None:
            self._runtime.fitness.note_success()
            return False
        if error.code == ENGINE_ERROR:
            self._runtime.fitness.note_failure(self._ticket.job_id, item.index, error.message)
        again = error.code in (ENGINE_ERROR, OUT_OF_MEMORY)
        return again and item.attempts + 1 < self._runtime.store.settings.max_attempts

    def _end_rest(self, error: OutputError) -> None:
        """Give every request that is not through an output with this error and the text so far."""
        loop, batch_id = self._runtime.loop, self._ticket.batch_id
        partial = {index: loop.withdraw(batch_id, index) for index in self._open}
        # What ended just before it could be withdrawn is in the inbox.
        self._commit_completed(self._ticket.inbox.take(0.0).completed)
        worker = self._runtime.worker
        self._account.commit([outputs.ended(item, partial[index], error, worker) for index, item in self._open.items()])
        self._open.clear()

    def _give_rest_back(self) -> None:
        """Save the tokens so far and make the rest pending again, without counting an attempt."""
        self._withdraw(self._open)
        self._release()

    def _give_back(self, indices: Collection[int]) -> None:
        """Make some requests pending again, with their tokens so far, for other workers; the batch goes on without."""
        if not (left := self._withdraw(indices)):
            return
        released = self._account.release(left, count_attempt=False)
        for index in left:
            del self._open[index]
        logger.info("gave %d requests of batch %s back to be run elsewhere", released, self._ticket.batch_id)
        if released:
            self._runtime.note_given_back(released)

    def _withdraw(self, indices: Collection[int]) -> list[int]:
        """Take requests from the engine and save their tokens so far; returns those that have not ended meanwhile."""
        loop, batch_id = self._runtime.loop, self._ticket.batch_id
        partial = {index: loop.withdraw(batch_id, index) for index in indices}
        # What ended just before it could be withdrawn is in the inbox.
        self._record(self._ticket.inbox.take(0.0))
        left = [index for index in partial if index in self._open]
        tokens = {index: item.checkpoint for index in left if (item := partial[index]) and item.checkpoint}
        self._account.checkpoint(tokens)
        return left

    def _release(self) -> None:
        released = self._account.release_all(count_attempt=False)
        logger.warning("gave %d requests of batch %s back", released, self._ticket.batch_id)
