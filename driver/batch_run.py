"""Runs a batch file: reads lines, keeps a bounded window of them in the ledger, appends each result as it comes.

Neither a long file nor a slow GPU lets anything grow: what is not yet submitted stays in the file, and what has been
written is trimmed from the ledger.
"""

import logging
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import msgspec

from broker.errors import BrokerError, ExceedsLimitError, StokerError
from broker.messages import Output, OutputSource
from broker.patience import Patience
from driver.batch_feed import BatchFeed, Share
from driver.batch_file import BadLine, BatchLine, BatchOutput, is_failure, read_batch
from driver.batch_progress import BatchProgress
from driver.client import Client

logger = logging.getLogger("stoker")

WINDOW = 2_048  # requests submitted and not yet answered
RUN = 256  # lines read and submitted at a time
POLL_S = 0.5
SHARED_POLL_S = 0.05  # when several models' jobs are read in turn
QUIET_S = 2.0


class BatchRun:
    """One run of one batch file. `run` it; after an exception, `cancel` what is still in the ledger."""

    def __init__(
        self,
        client: Client,
        source: Path,
        results: BatchOutput,
        *,
        model: str = "",
        served: frozenset[str] | None = None,
        share: Share | None = None,
        window: int = WINDOW,
        report: Callable[[BatchProgress], None] = lambda _: None,
    ) -> None:
        """`model` overrides what lines ask for; `served`, if given, are the only models that there can be."""
        self._client = client
        self._source = source
        self._results = results
        self._model = model
        self._served = served
        self._share = share or Share()
        self._window = window
        self._report = report
        self._feeds: dict[str, BatchFeed] = {}
        self._served_by: dict[str, str] = {}
        self._progress = BatchProgress()
        self._heard_s = time.monotonic()

    def run(self) -> BatchProgress:
        """Answer every line that has no answer yet. Returns the totals."""
        with self._source.open("rb") as file:
            lines = self._open_lines(file)
            more = True
            while more or self._waiting or self._is_full:
                if self._is_full:
                    self._submit([])
                elif more and self._waiting < self._window:
                    run = list(islice(lines, RUN))
                    more = bool(run)
                    self._submit(run)
                    if not more:
                        self._seal()
                at_once = more and self._waiting < self._window and not self._is_full
                self._collect(0.0 if at_once else POLL_S)
                self._report(self._progress)
        return self._progress

    def cancel(self) -> None:
        """Take what has no result yet out of the ledger, as far as it can be reached; a later run does it."""
        for feed in self._feeds.values():
            try:
                feed.cancel()
            except BrokerError as error:
                logger.warning("what was submitted stays submitted: %s", error)
                return  # nor would it answer for the others
            except StokerError as error:
                logger.warning("%s", error)

    def _seal(self) -> None:
        for feed in self._feeds.values():
            feed.seal()

    @property
    def _waiting(self) -> int:
        return sum(len(feed.waiting) for feed in self._feeds.values())

    @property
    def _is_full(self) -> bool:
        """Whether there was no room for lines that were read."""
        return any(feed.held for feed in self._feeds.values())

    def _open_lines(self, file: BinaryIO) -> Iterator[BatchLine | BadLine]:
        for item in read_batch(file):
            if self._results.has(item):
                self._count(skipped=1)
            else:
                yield item

    def _submit(self, items: list[BatchLine | BadLine]) -> None:
        by_model: dict[str, list[BatchLine]] = {}
        for item in items:
            refused = item if isinstance(item, BadLine) else self._refusal(item)
            if refused is not None:
                self._results.add_bad_line(refused)
                self._count(done=1, failed=1)
            elif isinstance(item, BatchLine):
                by_model.setdefault(self._model or item.model or "", []).append(item)
        for model in by_model:
            if model not in self._feeds:
                self._feeds[model] = BatchFeed(self._client, model, self._share)
        for model, feed in self._feeds.items():
            self._add(feed, by_model.get(model, []))

    def _add(self, feed: BatchFeed, lines: list[BatchLine]) -> None:
        """Submit lines and what is held before them; one that is too large for the limits gets its error."""
        while lines or feed.held:
            try:
                feed.add(lines)
            except ExceedsLimitError as error:
                lines, line = [], feed.take_first_held()
                self._results.add_bad_line(
                    BadLine(number=line.number, custom_id=line.custom_id, code=error.code, message=str(error))
                )
                self._count(done=1, failed=1)
            else:
                return

    def _refusal(self, line: BatchLine) -> BadLine | None:
        if self._served is None or self._model or line.model is None or line.model in self._served:
            return None
        served = ", ".join(sorted(self._served))
        message = f"body.model {line.model!r} is not served here (served: {served}); --model overrides it"
        return BadLine(number=line.number, custom_id=line.custom_id, code="model_not_found", message=message)

    def _collect(self, timeout_s: float) -> None:
        waiting = [feed for feed in self._feeds.values() if feed.waiting]
        heard = False
        if not waiting and self._is_full:
            time.sleep(timeout_s)  # others fill the queue
        for feed in waiting:
            answers = feed.read(min(timeout_s, SHARED_POLL_S) if len(waiting) > 1 else timeout_s)
            for line, output in answers:
                self._write(line, output, feed)
            if answers:
                feed.forget_read()
                heard = True
        for feed in self._feeds.values():
            feed.keep_open()
        self._mind_silence(heard or not (waiting or self._is_full))

    def _write(self, line: BatchLine, output: Output, feed: BatchFeed) -> None:
        self._results.add_output(
            line,
            output,
            job_id=feed.job_id,
            model_name=feed.model or self._model_of(output.worker_id),
            created=int(time.time()),
        )
        is_saved = output.source is not OutputSource.GENERATED
        tokens = 0 if is_saved else output.usage.completion_tokens
        self._count(done=1, failed=int(is_failure(output)), completion_tokens=tokens, saved=int(is_saved))

    def _model_of(self, worker: str) -> str:
        """The model that a worker serves, for lines that name none; "" when it has gone meanwhile."""
        if worker and worker not in self._served_by:
            rows = Patience()(self._client.workers)
            self._served_by[worker] = ""
            self._served_by |= {row.worker: row.model for row in rows}
        return self._served_by.get(worker, "")

    def _mind_silence(self, heard: bool) -> None:
        """While nothing comes, find out why; a client that knows that nothing ever will raises."""
        now_s = time.monotonic()
        if heard:
            self._heard_s = now_s
            self._set_obstacle(self._full())
        elif now_s - self._heard_s >= QUIET_S:
            self._heard_s = now_s
            silent = next(feed for feed in self._feeds.values() if feed.waiting or feed.held)
            self._set_obstacle(Patience()(lambda: self._client.obstacle(silent.model)) or self._full())

    def _full(self) -> str | None:
        """The limit that keeps lines back."""
        full = next((feed.full for feed in self._feeds.values() if feed.held and feed.full), None)
        return full and f"the queue is full: {full.limit} is {full.most}"

    def _set_obstacle(self, obstacle: str | None) -> None:
        self._progress = msgspec.structs.replace(self._progress, obstacle=obstacle)

    def _count(self, **lines: int) -> None:
        self._progress = self._progress.plus(**lines)
