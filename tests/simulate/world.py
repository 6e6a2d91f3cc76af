"""Time, the ledger and the workers, simulated; the planner is the driver's own, or one to compare it with."""

import time
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Protocol

from broker.records import JobFront, PendingRequest, Session, WaitingChanges, WaitingJob
from driver.planner import Plan
from driver.snapshot import Assignment, WorkerView
from tests.simulate.gpu import Gpu, Work
from tests.simulate.measures import Measures
from tests.simulate.workload import MAX_TOKENS, SimulatedJob, lengths_of

ROUND_S = 0.1  # between two rounds of scheduling
DISPATCH_S = 0.02  # from the decision until the request is in the engine
BEAT_S = 1.0
RESTART_S = 30.0
DETECT_S = 1.0
MODEL = "m"


class Schedules(Protocol):
    """The driver's `Planner`, or something to compare it with."""

    def workers(self, sessions: Sequence[Session]) -> tuple[WorkerView, ...]: ...

    def learn(self, changes: WaitingChanges, now_ms: int) -> None: ...

    def plan(self, ledger: "World", workers: tuple[WorkerView, ...], now_ms: int) -> Plan: ...


class _Job:
    """The ledger's view of a job."""

    def __init__(self, number: int, job: SimulatedJob) -> None:
        self.spec = job
        self.lengths = lengths_of(number, job)
        self.front: list[PendingRequest] = []
        self.read = 0
        self.attempts: dict[int, int] = {}
        self.pending = job.count
        self.answered = 0
        self.output_tokens = 0
        self.waiting = WaitingJob(
            id=str(number),
            model=MODEL,
            priority=job.priority,
            user=job.user,
            weight=job.weight,
            created_ms=int(job.at_s * 1000),
            deadline_ms=int((job.at_s + job.deadline_s) * 1000) if job.deadline_s else 0,
        )

    def show(self, limit: int) -> tuple[PendingRequest, ...]:
        while len(self.front) < limit and self.read < self.spec.count:
            self.front.append(self._request(self.read))
            self.read += 1
        return tuple(self.front[:limit])

    def take(self, indices: set[int]) -> None:
        assert indices <= {request.index for request in self.front}, "a request was assigned that is not pending"
        self.front = [request for request in self.front if request.index not in indices]
        self.pending -= len(indices)

    def give_back(self, index: int) -> None:
        self.attempts[index] = self.attempts.get(index, 0) + 1
        self.front.append(self._request(index))
        self.front.sort(key=lambda request: request.index)
        self.pending += 1

    def _request(self, index: int) -> PendingRequest:
        prompt = self.lengths[index][0]
        return PendingRequest(
            index=index,
            cost=prompt + self.spec.most_tokens(index),
            prompt_tokens=prompt,
            attempts=self.attempts.get(index, 0),
        )


class _Worker:
    """A GPU with its row in the heartbeat table."""

    def __init__(self, number: int, gpu: Gpu) -> None:
        self.gpu = gpu
        self.number = number
        self.life = 0
        self.up = True
        self.in_hand: dict[tuple[int, int], Work] = {}
        self.tokens = 0
        self.batches: dict[int, int] = {}  # batch: open requests
        self.isolated: set[int] = set()
        self._row: Session | None = None
        self._beat: tuple[int, int, int] = (0, 0, 0)

    def beat(self, now_s: float) -> None:
        self._beat = (int(now_s * 1000), int(self.gpu.done_tokens), self.gpu.running)
        self._row = None

    def changed(self) -> None:
        self._row = None

    def session(self) -> Session:
        if self._row is None:
            beat_ms, tokens, running = self._beat
            self._row = Session(
                id=f"{self.number}/{self.life}",
                worker=f"gpu{self.number:04}",
                epoch=1,
                state="ready",
                model=MODEL,
                slots=self.gpu.slots,
                kv_tokens=self.gpu.slots * 4 * MAX_TOKENS,
                max_batches=64,
                inhand_requests=len(self.in_hand),
                inhand_tokens=self.tokens,
                batches=len(self.batches),
                isolated=len(self.isolated),
                running=running,
                generated_tokens=tokens,
                beat_ms=beat_ms,
            )
        return self._row


class World:
    """Runs jobs on GPUs until all have their outputs."""

    def __init__(
        self,
        gpus: Sequence[Gpu],
        jobs: Sequence[SimulatedJob],
        planner: Schedules,
        deaths: Sequence[tuple[float, int]] = (),
        measures: type[Measures] = Measures,
    ) -> None:
        """`deaths` are times in seconds at which a worker, by number, crashes; it is back after a while."""
        self._workers = [_Worker(number, gpu) for number, gpu in enumerate(gpus)]
        self._by_session = {worker.session().id: worker for worker in self._workers}
        self._jobs = [_Job(number, job) for number, job in enumerate(jobs)]
        self._planner = planner
        self._events: list[tuple[float, int, str, object]] = []
        self._sent = 0
        self._batches = 0
        self._open = sum(job.count for job in jobs)
        self._now_s = 0.0
        self._waiting: set[str] = set()  # jobs, as of the last round
        self.measures = measures(list(jobs), sum(gpu.speed for gpu in gpus))
        for time_s, worker in deaths:
            self._at(time_s, "death", worker)

    def run(self) -> Measures:
        """Until everything is done."""
        self._at(0.0, "round", None)
        while self._open:
            self._now_s, _, kind, what = heappop(self._events)
            getattr(self, f"_{kind}")(what)
        self.measures.finish(self._now_s, self._effort())
        return self.measures

    # What the planner reads

    def fronts(self, job_ids: Sequence[str], limit: int) -> list[JobFront]:
        """See `Queries.fronts`."""
        return [self._front(self._jobs[int(job_id)], limit) for job_id in job_ids]

    def _front(self, job: _Job, limit: int) -> JobFront:
        return JobFront(
            pending=job.show(limit), backlog=job.pending, answered=job.answered, output_tokens=job.output_tokens
        )

    # Events

    def _round(self, _: object) -> None:
        for worker in self._workers:
            if worker.up and (self._now_s + worker.number / len(self._workers)) % BEAT_S < ROUND_S:
                worker.beat(self._now_s)
        sessions = [worker.session() for worker in self._workers if worker.up]
        changes = self._changes()
        started_s = time.process_time()  # the machine may be busy with other things
        workers = self._planner.workers(sessions)
        self._planner.learn(changes, int(self._now_s * 1000))
        plan = self._planner.plan(self, workers, int(self._now_s * 1000)) if self._waiting else Plan()
        self.measures.note_round(
            self._now_s,
            time.process_time() - started_s,
            sum(job.pending for job in self._jobs if job.spec.at_s <= self._now_s),
            len(plan.assignments),
            self._effort(),
        )
        self._assign(plan.assignments)
        self._at(self._now_s + ROUND_S, "round", None)

    def _changes(self) -> WaitingChanges:
        """Which jobs begin to wait since the last round, and which do not wait any more."""
        now = {job.waiting.id: job.waiting for job in self._jobs if job.pending and job.spec.at_s <= self._now_s}
        joined = tuple(job for job_id, job in now.items() if job_id not in self._waiting)
        left = frozenset(self._waiting - now.keys())
        self._waiting = set(now)
        return WaitingChanges(joined=joined, left=left)

    def _assign(self, assignments: Sequence[Assignment]) -> None:
        taken: dict[str, set[int]] = {}
        for item in assignments:
            taken_of_job = taken.setdefault(item.job_id, set())
            assert not taken_of_job & set(item.indices), "a request is in two batches"
            taken_of_job |= set(item.indices)
            worker, job = self._by_session[item.session_id], self._jobs[int(item.job_id)]
            self._batches += 1
            worker.batches[self._batches] = len(item.indices)
            if item.isolated:
                worker.isolated.add(self._batches)
            for index, expected in zip(item.indices, item.tokens, strict=True):
                prompt, output = job.lengths[index]
                work = Work(
                    job=int(item.job_id),
                    index=index,
                    prompt_tokens=prompt,
                    output_tokens=output,
                    expected=expected,
                    batch=self._batches,
                )
                worker.in_hand[work.job, index] = work
                worker.tokens += expected
                self._at(self._now_s + DISPATCH_S, "arrival", (worker, worker.life, work))
            worker.changed()
        for job_id, indices in taken.items():
            self._jobs[int(job_id)].take(indices)

    def _arrival(self, what: tuple[_Worker, int, Work]) -> None:
        worker, life, work = what
        if worker.life != life:
            return  # it died on the way, and the work was given back
        if worker.gpu.add(work, self._now_s):
            self.measures.note_start(work.job, self._now_s)
        self._expect_end(worker)

    def _end(self, what: tuple[_Worker, int]) -> None:
        worker, version = what
        if worker.gpu.version != version:
            return
        done, begun = worker.gpu.finish(self._now_s)
        if begun is not None:
            self.measures.note_start(begun.job, self._now_s)
        job = self._jobs[done.job]
        job.answered += 1
        job.output_tokens += done.output_tokens
        self._drop(worker, done)
        self._open -= 1
        self.measures.note_end(done.job, done.effort, self._now_s)
        self._expect_end(worker)

    def _death(self, number: int) -> None:
        worker = self._workers[number]
        worker.gpu.crash(self._now_s)
        worker.up = False
        worker.life += 1
        lost = list(worker.in_hand.values())
        for work in lost:
            self._drop(worker, work)
        self._at(self._now_s + DETECT_S, "release", lost)
        self._at(self._now_s + RESTART_S, "restart", worker)

    def _release(self, lost: Sequence[Work]) -> None:
        for work in lost:
            self._jobs[work.job].give_back(work.index)

    def _restart(self, worker: _Worker) -> None:
        worker.up = True
        worker.beat(self._now_s)
        self._by_session[worker.session().id] = worker

    def _drop(self, worker: _Worker, work: Work) -> None:
        del worker.in_hand[work.job, work.index]
        worker.tokens -= work.expected
        worker.batches[work.batch] -= 1
        if not worker.batches[work.batch]:
            del worker.batches[work.batch]
            worker.isolated.discard(work.batch)
        worker.changed()

    def _expect_end(self, worker: _Worker) -> None:
        end_s = worker.gpu.next_end_s()
        if end_s is not None:
            self._at(end_s, "end", (worker, worker.gpu.version))

    def _effort(self) -> float:
        return sum(worker.gpu.done_by(self._now_s) for worker in self._workers)

    def _at(self, time_s: float, kind: str, what: object) -> None:
        self._sent += 1
        heappush(self._events, (time_s, self._sent, kind, what))
