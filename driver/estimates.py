"""What is learned from finished work: how long texts become, and how fast workers are. Pure.

It lives in the leading driver's memory. A new leader knows a job's lengths from the ledger's counters at once, and
the rest again after some beats; until then requests count in full and workers as equally fast.
"""

from collections.abc import Iterable

from broker.records import JobFront, PendingRequest, Session
from driver.snapshot import JobView

ENOUGH = 16  # answers before lengths are believed
HEADROOM = 1.5  # a request is expected to be so many times as long as the mean: safe for the KV memory
MEMORY_ANSWERS = 10_000  # of a model; older ones count less and less
SAMPLE = 64  # requests that stand for all of a job
MEMORY_BEATS = 0.3  # weight of a new measurement of speed


class Lengths:
    """Mean tokens of a request's texts, by model and by job."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}  # job: answers, tokens
        self._models: dict[str, tuple[float, float]] = {}

    def note(self, job_id: str, model: str, front: JobFront) -> float | None:
        """Learn from a job's counters. Returns the mean tokens of its requests' texts; see `mean`."""
        answers, tokens = self._seen.get(job_id, (0, 0))
        self._seen[job_id] = (front.answered, front.output_tokens)
        self._add(model, front.answered - answers, front.output_tokens - tokens)
        return self.mean(job_id, model)

    def mean(self, job_id: str, model: str) -> float | None:
        """Mean tokens of the texts of a job's requests, else of its model's; None while too little is known."""
        answers, tokens = self._seen.get(job_id, (0, 0))
        if answers >= ENOUGH:
            return tokens / answers
        of_model = self._models.get(model, (0.0, 0.0))
        return of_model[1] / of_model[0] if of_model[0] >= ENOUGH else None

    def forget_all_but(self, job_ids: set[str]) -> None:
        """Forget jobs that wait no more."""
        self._seen = {job_id: seen for job_id, seen in self._seen.items() if job_id in job_ids}

    def _add(self, model: str, answers: int, tokens: int) -> None:
        if answers <= 0:
            return
        before = self._models.get(model, (0.0, 0.0))
        fade = min(1.0, MEMORY_ANSWERS / (before[0] + answers))
        self._models[model] = ((before[0] + answers) * fade, (before[1] + tokens) * fade)


def expected_tokens(request: PendingRequest, mean_output: float | None) -> int:
    """What a request will probably occupy, at the most: its prompt, and a text of `HEADROOM` times the mean."""
    if mean_output is None or not request.prompt_tokens:
        return request.cost
    return min(request.cost, request.prompt_tokens + int(HEADROOM * mean_output) + 1)


def probable_tokens(job: JobView) -> float:
    """Mean tokens of the next requests of the job, without headroom."""
    if not job.pending:
        return 1.0
    total = 0.0
    sample = job.pending[:SAMPLE]
    for request in sample:
        output = request.cost - request.prompt_tokens
        total += request.prompt_tokens + (output if job.mean_output is None else min(output, job.mean_output))
    return max(1.0, total / len(sample))


class WorkerSpeeds:
    """How many tokens each worker generates in a second with all its slots in use, measured between beats."""

    def __init__(self) -> None:
        self._beats: dict[str, tuple[int, int]] = {}  # session: server ms, tokens generated until then
        self._of_request: dict[str, float] = {}  # tokens per second of one request

    def note(self, sessions: Iterable[Session]) -> None:
        """Learn from the latest beats."""
        live: set[str] = set()
        for session in sessions:
            live.add(session.id)
            before = self._beats.get(session.id)
            if before is None or session.beat_ms > before[0]:
                self._beats[session.id] = (session.beat_ms, session.generated_tokens)
                if before is not None and session.running:
                    self._measure(session, before)
        self._beats = {key: beat for key, beat in self._beats.items() if key in live}
        self._of_request = {key: speed for key, speed in self._of_request.items() if key in live}

    def speed(self, session: Session) -> float:
        """Tokens per second with all slots in use; as the others' on average while it is not known, 1 if none is."""
        own = self._of_request.get(session.id)
        if own is None:
            known = self._of_request.values()
            own = sum(known) / len(known) if known else 1.0 / max(session.slots, 1)
        return own * max(session.slots, 1)

    def fastest_request(self) -> float:
        """Tokens per second of one request where it goes fastest; 0 while nothing is known."""
        return max(self._of_request.values(), default=0.0)

    def _measure(self, session: Session, before: tuple[int, int]) -> None:
        tokens = session.generated_tokens - before[1]
        if tokens <= 0:
            return
        now = 1000 * tokens / (session.beat_ms - before[0]) / session.running
        old = self._of_request.get(session.id, now)
        self._of_request[session.id] = old + MEMORY_BEATS * (now - old)
