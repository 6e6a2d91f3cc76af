"""Writes a job's requests into the ledger, in runs of bounded size."""

from collections.abc import Iterable, Sequence

from broker.ledger import Ledger
from broker.messages import Request
from broker.patience import Patience

RUN_REQUESTS = 256
RUN_BYTES = 1 << 20  # estimated


class JobFeed:
    """An open job that takes requests until it is sealed. Every run is in the ledger when the call returns."""

    def __init__(
        self,
        ledger: Ledger,
        job_id: str,
        model: str,
        *,
        priority: int = 0,
        deadline_s: float | None = None,
        insist: Patience | None = None,
    ) -> None:
        """`insist` waits out an outage of Redis; without it, the first error is raised."""
        self._ledger = ledger
        self._model = model
        self._priority = priority
        self._deadline_s = deadline_s
        self._insist = insist or Patience(limit_s=0.0)
        self.job_id = job_id
        self.submitted = 0

    def add(self, requests: Iterable[Request]) -> None:
        """Add requests; their indices go on from those before.

        Raises:
            BrokerUnavailableError: Redis does not answer; what was added before is kept.
        """
        for run in _runs(requests):
            self._send(run, last=False)

    def add_and_seal(self, requests: Sequence[Request]) -> None:
        """Add requests and say that no more follow; a small job takes one round trip."""
        runs = list(_runs(requests)) or [()]
        for run in runs[:-1]:
            self._send(run, last=False)
        self._send(runs[-1], last=True)

    def seal(self) -> None:
        """Say that no more requests follow."""
        self._send((), last=True)

    def keep_open(self) -> None:
        """Tell the ledger that more may still come."""
        self._send((), last=False)

    def _send(self, run: Sequence[Request], *, last: bool) -> None:
        self._insist(
            lambda: self._ledger.submit(
                self.job_id,
                self._model,
                run,
                offset=self.submitted,
                last=last,
                priority=self._priority,
                deadline_s=self._deadline_s,
            )
        )
        self.submitted += len(run)


def _runs(requests: Iterable[Request]) -> Iterable[tuple[Request, ...]]:
    run: list[Request] = []
    size = 0
    for request in requests:
        run.append(request)
        size += 4 * request.estimated_prompt_tokens()
        if len(run) >= RUN_REQUESTS or size >= RUN_BYTES:
            yield tuple(run)
            run, size = [], 0
    if run:
        yield tuple(run)
