"""The ledger's view of jobs, simulated: what is pending, what was answered, how often each request was tried."""

from broker.records import JobFront, PendingRequest, WaitingJob
from tests.simulate.workload import SimulatedJob, lengths_of

MODEL = "m"


class LedgerJob:
    """A job; it refuses to lose a request, and to have one pending twice."""

    def __init__(self, number: int, job: SimulatedJob) -> None:
        self.spec = job
        self.lengths = lengths_of(number, job)
        self.pending = job.count
        self.answered = 0
        self.output_tokens = 0
        self._front: list[PendingRequest] = []
        self._read = 0
        self._attempts: dict[int, int] = {}
        self._generated: dict[int, int] = {}
        self.waiting = WaitingJob(
            id=str(number),
            model=MODEL,
            priority=job.priority,
            user=job.user,
            weight=job.weight,
            created_ms=int(job.at_s * 1000),
            deadline_ms=int((job.at_s + job.deadline_s) * 1000) if job.deadline_s else 0,
        )

    def front(self, limit: int) -> JobFront:
        """See `Queries.fronts`."""
        while len(self._front) < limit and self._read < self.spec.count:
            self._front.append(self._request(self._read))
            self._read += 1
        return JobFront(
            pending=tuple(self._front[:limit]),
            backlog=self.pending,
            answered=self.answered,
            output_tokens=self.output_tokens,
        )

    def take(self, indices: set[int]) -> None:
        """Requests are assigned."""
        assert indices <= {request.index for request in self._front}, "a request was assigned that is not pending"
        self._front = [request for request in self._front if request.index not in indices]
        self.pending -= len(indices)

    def give_back(self, index: int, generated: int, *, count_attempt: bool) -> None:
        """A request is pending again, with so many tokens of its output."""
        self._generated[index] = generated
        assert index < self._read and all(request.index != index for request in self._front), "it is pending already"
        if count_attempt:
            self._attempts[index] = self.attempts(index) + 1
        self._front.append(self._request(index))
        self._front.sort(key=lambda request: request.index)
        self.pending += 1

    def answer(self, output_tokens: int) -> None:
        """One more request has its output."""
        self.answered += 1
        self.output_tokens += output_tokens
        assert self.pending + self.answered <= self.spec.count, "a request has two outputs"

    def attempts(self, index: int) -> int:
        """How often a request was part of a death."""
        return self._attempts.get(index, 0)

    def generated(self, index: int) -> int:
        """Tokens of its output that the ledger has."""
        return self._generated.get(index, 0)

    def _request(self, index: int) -> PendingRequest:
        prompt = self.lengths[index][0]
        return PendingRequest(
            index=index,
            cost=prompt + self.spec.most_tokens(index),
            prompt_tokens=prompt,
            attempts=self.attempts(index),
        )
