"""Writes a job's requests into the ledger, in runs of bounded size, and waits for room where limits are set."""

from collections.abc import Iterable, Sequence

from broker.costs import estimated_tokens
from broker.errors import ExceedsLimitError, QueueFullError
from broker.ledger import Ledger
from broker.messages import Request
from broker.patience import Patience
from driver.lease import Leases
from driver.room import Room
from driver.runs import runs


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
        user: str = "",
        weight: float = 1.0,
        insist: Patience | None = None,
        room: Room | None = None,
        leases: Leases | None = None,
    ) -> None:
        """`insist` waits out an outage of Redis; without it, the first error is raised. `room` does so for limits.

        With `leases` the job stays open as long as this process lives and has this object; without, as long as not
        more than `LEASE_S` pass between two calls.
        """
        self._ledger = ledger
        self._model = model
        self._priority = priority
        self._deadline_s = deadline_s
        self._user = user
        self._weight = weight
        self._insist = insist or Patience(limit_s=0.0)
        self._room = room
        self._leases = leases
        self.job_id = job_id
        self.submitted = 0

    def add(self, requests: Iterable[Request]) -> None:
        """Add requests; their indices go on from those before. While the queue is full it waits, if it was told to.

        Those that are slow to come, as a generator may give them, go in one by one.

        Raises:
            BrokerUnavailableError: Redis does not answer; what was added before is kept.
            QueueFullError: a limit is reached, and it was not told to wait, or not so long; what was added is kept.
            ExceedsLimitError: a request is larger than a limit: it can never be taken.
            InvalidRequestError: one of them is no `Request`.
        """
        for run in runs(requests):
            rest = run
            while rest := rest[self._send_fitting(rest) :]:
                pass

    def offer(self, requests: Sequence[Request]) -> QueueFullError | None:
        """Add as many of these as there is room for, from the first on: `submitted` says how many. Does not wait.

        Returns why the rest was not taken; None when there is no rest.

        Raises:
            BrokerUnavailableError: Redis does not answer; what was added before is kept.
            ExceedsLimitError: a request is larger than a limit: it can never be taken.
        """
        for run in runs(requests):
            sent, full = self._try(run)
            if full is not None and sent < len(run):
                return full
        return None

    def add_and_seal(self, requests: Sequence[Request]) -> None:
        """Add requests and say that no more follow; a small job takes one round trip.

        Without waiting, the job is taken as a whole or not at all.

        Raises:
            BrokerUnavailableError: Redis does not answer; what was added before is kept.
            QueueFullError: a limit is reached.
            ExceedsLimitError: without waiting, the job is larger than a limit; else, a request is.
        """
        if self._room is not None:
            self._add_and_seal_waiting(requests)
            return
        all_runs = list(runs(requests)) or [()]
        announced = (len(requests), sum(estimated_tokens(request) for request in requests))
        for place, run in enumerate(all_runs):
            try:
                self._send(run, last=place == len(all_runs) - 1, announced=announced)
            except QueueFullError as full:
                _refuse_hopeless(full, "submit it with block=True, to have it fed in bit by bit")
                raise

    def seal(self) -> None:
        """Say that no more requests follow."""
        self._send((), last=True)

    def let_go(self) -> None:
        """Add no more and leave the job as it is: unless it is sealed, the driver takes its client for gone."""
        if self._leases is not None:
            self._leases.let_go(self.job_id)

    def keep_open(self) -> None:
        """Tell the ledger that more may still come."""
        self._send((), last=False)

    def _add_and_seal_waiting(self, requests: Sequence[Request]) -> None:
        *others, end = list(runs(requests)) or [()]
        for run in others:
            self.add(run)
        try:
            self._send(end, last=True)
        except QueueFullError:
            self.add(end)
            self.seal()

    def _send_fitting(self, run: Sequence[Request]) -> int:
        """Send what fits of a run, and wait if that is nothing. Returns how many went."""
        if self._room is None:
            self._send_whole(run)
            return len(run)
        sent, full = self._try(run)
        if full is None or sent:
            self._room.found()
        else:
            self._room.wait(full)
        return sent

    def _send_whole(self, run: Sequence[Request]) -> None:
        try:
            self._send(run, last=False)
        except QueueFullError as full:
            _refuse_hopeless(full, "add fewer at a time")
            raise

    def _try(self, run: Sequence[Request]) -> tuple[int, QueueFullError | None]:
        """Send a run, or what there is room for. Returns how many went, and why not all did."""
        try:
            self._send(run, last=False)
        except QueueFullError as full:
            if len(run) == 1:
                _refuse_hopeless(full, "the request can never be taken")
                return 0, full
            # One alone, though there is no room for it now, shows whether there ever will be.
            return self._try(run[: max(full.fits, 1)])[0], full
        return len(run), None

    def _send(self, run: Sequence[Request], *, last: bool, announced: tuple[int, int] = (0, 0)) -> None:
        self._insist(
            lambda: self._ledger.submit(
                self.job_id,
                self._model,
                run,
                offset=self.submitted,
                last=last,
                priority=self._priority,
                deadline_s=self._deadline_s,
                user=self._user,
                weight=self._weight,
                announced=announced,
            )
        )
        self.submitted += len(run)
        if self._leases is not None and not last:
            self._leases.hold(self)
        if last:
            self.let_go()


def _refuse_hopeless(full: QueueFullError, advice: str) -> None:
    if full.wanted > full.most:
        unit = "tokens" if full.limit.endswith("tokens") else "requests"
        raise ExceedsLimitError(
            f"{full.wanted} {unit} at once, and at most {full.most} may wait ({full.limit}): {advice}"
        ) from full
