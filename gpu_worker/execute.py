"""Runs one batch: claim it, generate, commit outputs as they finish, finish it.

Killed at any line, nothing is lost: until an output is committed its request belongs to this session's batch, and a
dead session's batches become pending again. While Redis is away, generation goes on and outputs are held.
"""

import contextlib
import logging
import time
from collections.abc import Collection, Iterable, Mapping

import msgspec
from celery import Celery

from broker.closing import close_job
from broker.deltas import TextDelta
from broker.errors import BrokerRefusedError, JobNotFoundError
from broker.messages import FinishReason, Output, OutputError, failed_output
from broker.patience import Patience
from broker.records import ClaimedBatch, ClaimedRequest
from gpu_worker.engine.base import Completion
from gpu_worker.engine.errors import ENGINE_ERROR, OUT_OF_MEMORY
from gpu_worker.in_hand import Ticket
from gpu_worker.inbox import News
from gpu_worker.runtime import Runtime

logger = logging.getLogger(__name__)

CANCELLED = OutputError(code="cancelled", message="the job was cancelled")
DEADLINE_EXCEEDED = OutputError(code="deadline_exceeded", message="the job's deadline passed during generation")

insist = Patience()


def execute_batch(app: Celery, runtime: Runtime, batch_id: str, job_id: str) -> None:
    """Run a batch if it is this session's and not already in hand; otherwise the message is stale and harmless."""
    ticket = runtime.in_hand.take(batch_id, job_id)
    if ticket is None:
        logger.info("batch %s is already in hand", batch_id)
        return
    try:
        claimed = insist(lambda: runtime.store.ledger.claim(batch_id, job_id, runtime.session_id))
        if claimed is None:
            logger.info("batch %s is not ours any more", batch_id)
        else:
            _Execution(app, runtime, ticket, claimed).run()
    except Exception as error:
        # A fault of ours. The ledger must not go on believing that the batch is being run.
        logger.exception("batch %s failed", batch_id)
        if runtime.is_ready:
            runtime.loop.withdraw_batch(batch_id)
        runtime.fitness.note_failure(job_id, 0, f"{type(error).__name__}: {error}")
        with contextlib.suppress(BrokerRefusedError):  # it was refused before; the batch stays with this session
            insist(lambda: runtime.store.ledger.release(batch_id, job_id, runtime.session_id, count_attempt=True))
    finally:
        runtime.in_hand.drop(ticket)


class _Execution:
    """One claimed batch on its way through the engine."""

    def __init__(self, app: Celery, runtime: Runtime, ticket: Ticket, claimed: ClaimedBatch) -> None:
        self._app = app
        self._runtime = runtime
        self._ledger = runtime.store.ledger
        self._ticket = ticket
        self._ids = (ticket.batch_id, ticket.job_id, runtime.session_id)
        self._claimed = claimed
        self._open = {item.index: item for item in claimed.requests}
        self._end_s = float("inf") if claimed.deadline_s is None else time.monotonic() + claimed.deadline_s
        ticket.cancelled = claimed.cancelled
        ticket.suspects = frozenset(item.index for item in claimed.requests if item.attempts)

    def run(self) -> None:
        self._commit(self._refused(index, why) for index, why in self._claimed.unreadable)
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
        if insist(lambda: self._ledger.finish(self._ticket.batch_id, self._runtime.session_id)):
            # What is open still was answered elsewhere, or its job is gone; the batch must not hold its place for it.
            insist(lambda: self._ledger.release(*self._ids, count_attempt=False))

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
        if news.saved:
            insist(lambda: self._ledger.checkpoint(*self._ids, news.saved))
        if news.texts:
            self._publish(news.texts.values())

    def _publish(self, texts: Collection[TextDelta]) -> None:
        """Send new text to who reads along. No batch fails where Redis will not have it: the outputs bring it."""
        try:
            insist(lambda: self._ledger.publish(*self._ids, texts))
        except BrokerRefusedError as error:
            logger.warning("text of batch %s was not published: %s", self._ticket.batch_id, error)

    def _commit_completed(self, completed: Mapping[int, Completion]) -> None:
        again: list[int] = []
        outputs: list[Output] = []
        for index, completion in completed.items():
            item = self._open.pop(index, None)
            if item is None:  # it ended in the moment in which it was given back, and runs elsewhere
                continue
            if self._should_run_elsewhere(item, completion):
                again.append(index)
            else:
                outputs.append(self._output(item, completion))
        self._commit(outputs)
        if again:
            insist(lambda: self._ledger.release(*self._ids, count_attempt=True, indices=again))

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
        self._commit(
            self._ended(index, completion, error) for index, completion in partial.items() if index in self._open
        )
        self._open.clear()

    def _give_rest_back(self) -> None:
        """Save the tokens so far and make the rest pending again, without counting an attempt."""
        self._withdraw(self._open)
        self._release()

    def _give_back(self, indices: Collection[int]) -> None:
        """Make some requests pending again, for others that have nothing to do; the batch goes on without them."""
        left = self._withdraw(indices)
        if not left:
            return  # without indices all would be released
        released = insist(lambda: self._ledger.release(*self._ids, count_attempt=False, indices=left))
        for index in left:
            del self._open[index]
        logger.info("gave %d requests of batch %s back, which had not begun", released, self._ticket.batch_id)
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
        if tokens:
            insist(lambda: self._ledger.checkpoint(*self._ids, tokens))
        return left

    def _release(self) -> None:
        released = insist(lambda: self._ledger.release(*self._ids, count_attempt=False))
        logger.warning("gave %d requests of batch %s back", released, self._ticket.batch_id)

    def _ended(self, index: int, completion: Completion | None, error: OutputError) -> Output:
        empty = Completion(request_id="", finish_reason=FinishReason.ERROR)
        output = self._output(self._open[index], completion or empty)
        return msgspec.structs.replace(output, error=error, finish_reason=FinishReason.ERROR)

    def _output(self, item: ClaimedRequest, completion: Completion) -> Output:
        return Output(
            index=item.index,
            text=completion.text,
            token_ids=completion.token_ids,
            finish_reason=completion.finish_reason,
            usage=completion.usage,
            error=completion.error,
            input_ids=completion.input_ids if item.request.return_input_ids else None,
            worker_id=self._runtime.worker,
            logprobs=completion.logprobs,
            choices=completion.choices,
        )

    def _refused(self, index: int, why: str) -> Output:
        return failed_output(index, "invalid_message", why, worker_id=self._runtime.worker)

    def _commit(self, outputs: Iterable[Output]) -> None:
        ready = list(outputs)
        if not ready:
            return
        try:
            result = insist(lambda: self._ledger.commit(*self._ids, ready))
        except JobNotFoundError:
            logger.info("job %s is gone; %d outputs dropped", self._ticket.job_id, len(ready))
            indices = [output.index for output in ready]
            insist(lambda: self._ledger.release(*self._ids, count_attempt=False, indices=indices))
            return
        if result.job_done:
            self._close_job()

    def _close_job(self) -> None:
        try:
            close_job(self._app, self._runtime.store, self._ticket.job_id)
        except Exception:
            # The driver finds the job in `closing` and does it again.
            logger.exception("could not close job %s", self._ticket.job_id)
