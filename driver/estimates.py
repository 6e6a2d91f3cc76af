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
LONG = 2.5  # times the mean is a long text
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

    def longest(self) -> float:
        """The largest mean of all jobs and models."""
        rows = [*self._seen.values(), *self._models.values()]
        return max((tokens / answers for answers, tokens in rows if answers >= ENOUGH), default=0.0)

    def forget(self, job_id: str) -> None:
        """Forget a job that waits no more."""
        self._seen.pop(job_id, None)

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
    sample = [_tokens(request, job.mean_output) for request in job.pending[:SAMPLE]]
    return max(1.0, sum(sample) / max(len(sample), 1))


def long_tokens(job: JobView) -> float:
    """What one of the next requests of the job may well take, if its text becomes a long one."""
    mean = None if job.mean_output is None else LONG * job.mean_output
    return max((_tokens(request, mean) for request in job.pending[:SAMPLE]), default=1.0)


def _tokens(request: PendingRequest, output: float | None) -> float:
    most = request.cost - request.prompt_tokens
    return request.prompt_tokens + (most if output is None else min(most, output))


class WorkerSpeeds:
    """How many tokens each worker generates in a second with all its slots in use, measured between beats.

    A request goes faster the fewer there are beside it, so a worker seen with little to do looks faster than one that
    is full: the two are not compared.
    """

    def __init__(self) -> None:
        self._beats: dict[str, tuple[int, int, int]] = {}  # session: server ms, tokens until then, requests running
        self._busy: dict[str, float] = {}  # session: tokens per second of one request, while half the slots were in use
        self._light: dict[str, float] = {}  # the same, while fewer were
        self._pace: dict[str, tuple[float, float]] = {}  # the same, at the last two times that it was measured

    def note(self, sessions: Iterable[Session]) -> None:
        """Learn from the latest beats."""
        live: set[str] = set()
        for session in sessions:
            live.add(session.id)
            before = self._beats.get(session.id)
            if before is None or session.beat_ms > before[0]:
                self._beats[session.id] = (session.beat_ms, session.generated_tokens, session.running)
                if before is not None and session.running:
                    self._measure(session, before)
        for known in (self._beats, self._busy, self._light, self._pace):
            for session_id in known.keys() - live:
                del known[session_id]

    def speed(self, session: Session) -> float:
        """Tokens per second with all slots in use: as seen at work, else as measured at its start.

        Without either it is taken to be like the others; where nobody is known, all are equally fast.
        """
        slots = max(session.slots, 1)
        if session.id not in self._busy and session.decode_tokens_per_s > 0:
            return session.decode_tokens_per_s
        known = self._busy or self._light
        own = known.get(session.id)
        if own is None:
            own = sum(known.values()) / len(known) if known else 1.0 / slots
        return own * slots

    def fastest_request(self) -> float:
        """Tokens per second of one request where it goes fastest; 0 while nothing is known."""
        return max([*self._busy.values(), *self._light.values()], default=0.0)

    def pace(self, session: Session) -> float:
        """Tokens per second of one of its requests, as two beats in a row have shown; 0 while nothing is known."""
        return max(self._pace.get(session.id, (0.0, 0.0)))

    def is_proven(self, session: Session) -> bool:
        """Whether its speed was seen at work, with at least half of its slots in use."""
        return session.id in self._busy

    def _measure(self, session: Session, before: tuple[int, int, int]) -> None:
        tokens = session.generated_tokens - before[1]
        if tokens <= 0:
            return
        now = 1000 * tokens / (session.beat_ms - before[0]) / session.running
        known = self._busy if 2 * session.running >= session.slots else self._light
        old = known.get(session.id)
        if _is_steady(before[2], session.running):
            known[session.id] = now if old is None else old + MEMORY_BEATS * (now - old)
            self._pace[session.id] = (self._pace.get(session.id, (now, now))[1], now)
        elif old is None and not session.decode_tokens_per_s:
            known[session.id] = now  # better than nothing, and soon corrected


def _is_steady(before: int, now: int) -> bool:
    """Whether about as many requests ran at both beats: when many came or went, nobody knows when."""
    return 3 * max(before, now) <= 4 * min(before, now)
