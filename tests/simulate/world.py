"""Time, the ledger and the workers, simulated; the planner is the driver's own, or one to compare it with."""

import time
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Protocol

from broker.records import JobFront, Session, WaitingChanges
from driver.planner import Plan
from driver.snapshot import Assignment, Recall, WorkerView
from tests.simulate.gpu import Gpu, Work
from tests.simulate.incidents import Incident, Kind, speed_over_time
from tests.simulate.jobs import LedgerJob
from tests.simulate.measures import Measures
from tests.simulate.timing import BEAT_S, DETECT_S, DRAIN_S, RESTART_S, ROUND_S, Timing
from tests.simulate.worker import Order, SimulatedWorker
from tests.simulate.workload import SimulatedJob


class Schedules(Protocol):
    """The driver's `Planner`, or something to compare it with."""

    def workers(self, sessions: Sequence[Session]) -> tuple[WorkerView, ...]: ...

    def learn(self, changes: WaitingChanges, now_ms: int) -> None: ...

    def plan(self, ledger: "World", workers: tuple[WorkerView, ...], now_ms: int) -> Plan: ...

    def balance(
        self, sessions: Sequence[Session], workers: Sequence[WorkerView], now_ms: int
    ) -> tuple[Recall, ...]: ...


class World:
    """Runs jobs on GPUs until all have their outputs."""

    def __init__(
        self,
        gpus: Sequence[Gpu],
        jobs: Sequence[SimulatedJob],
        planner: Schedules,
        incidents: Sequence[Incident] = (),
        *,
        measures: type[Measures] = Measures,
        timing: Timing | None = None,
    ) -> None:
        late = {item.gpu for item in incidents if item.kind is Kind.JOIN}
        self._timing = timing or Timing()
        self._workers = [SimulatedWorker(number, gpu, up=number not in late) for number, gpu in enumerate(gpus)]
        self._by_session = {worker.session_id: worker for worker in self._workers}
        self._jobs = [LedgerJob(number, job) for number, job in enumerate(jobs)]
        self._planner = planner
        self._events: list[tuple[float, int, str, object]] = []
        self._sent = 0
        self._batches = 0
        self._open = sum(job.count for job in jobs)
        self._now_s = 0.0
        self._waiting: set[str] = set()  # jobs, as of the last round
        self.measures = measures(list(jobs), speed_over_time([gpu.speed for gpu in gpus], incidents))
        for worker in self._workers:
            self._at(BEAT_S * worker.number / len(gpus), "beat", worker)
        for item in incidents:
            self._at(item.at_s, item.kind, item)

    def run(self) -> Measures:
        """Until everything is done."""
        self._at(0.0, "round", None)
        while self._open:
            self._now_s, _, kind, what = heappop(self._events)
            getattr(self, f"_{kind}")(what)
        self.measures.finish(self._now_s, self._effort())
        return self.measures

    def fronts(self, job_ids: Sequence[str], limit: int) -> list[JobFront]:
        """See `Queries.fronts`."""
        return [self._jobs[int(job_id)].front(limit) for job_id in job_ids]

    # The driver

    def _round(self, _: object) -> None:
        """As `DriverService` does it."""
        now_ms = int(self._now_s * 1000)
        sessions = [worker.session(self._now_s) for worker in self._workers if worker.up]
        changes = self._changes()
        started_s = time.process_time()  # the machine may be busy with other things
        workers = self._planner.workers(sessions)
        self._planner.learn(changes, now_ms)
        plan, recalls = Plan(), ()
        if any(worker.has_room for worker in workers):
            plan = self._planner.plan(self, workers, now_ms)
            recalls = self._planner.balance(sessions, workers, now_ms)
        self.measures.note_round(
            self._now_s,
            time.process_time() - started_s,
            sum(job.pending for job in self._jobs if job.spec.at_s <= self._now_s),
            len(plan.assignments),
            self._effort(),
        )
        self._assign(plan.assignments)
        for recall in recalls:
            self._by_session[recall.session_id].order = Order(count=recall.count, at_s=self._now_s, begun=recall.begun)
            self.measures.note_order()
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
            self._batches += 1
            self._send(item)
        for job_id, indices in taken.items():
            self._jobs[int(job_id)].take(indices)

    def _send(self, item: Assignment) -> None:
        worker, job = self._by_session[item.session_id], self._jobs[int(item.job_id)]
        arrival_s = self._now_s + self._timing.dispatch_s()
        for index, expected in zip(item.indices, item.tokens, strict=True):
            prompt, output = job.lengths[index]
            work = Work(
                job=int(item.job_id),
                index=index,
                prompt_tokens=prompt,
                output_tokens=output,
                expected=expected,
                batch=self._batches,
                most_tokens=prompt + job.spec.most_tokens(index),
                priority=job.spec.priority,
                attempts=job.attempts(index),
                generated=job.generated(index),
            )
            worker.take(work, isolated=item.isolated)
            self._at(arrival_s, "arrival", (worker, work))

    # The workers

    def _beat(self, worker: SimulatedWorker) -> None:
        """Each beats all the time, as far as it is there."""
        if worker.up:
            worker.report(self._now_s)
            order = worker.take_order(self._now_s)
            if order and self._timing.answer_arrives():
                for work in worker.to_give_back(order, self._now_s):
                    self._at(self._now_s + self._timing.give_back_s(), "given_back", (worker, work))
            if worker.drains and not worker.in_hand:
                worker.up = False
                self.measures.note_left(self._now_s - worker.drains_since_s)
        self._at(self._now_s + self._timing.beat_s(), "beat", worker)

    def _arrival(self, what: tuple[SimulatedWorker, Work]) -> None:
        worker, work = what
        if worker.has(work):  # else it died on the way, and the work is pending again
            self._note_begun(worker.gpu.add(work, self._now_s))
            self._expect_end(worker)

    def _end(self, what: tuple[SimulatedWorker, int]) -> None:
        worker, version = what
        if worker.gpu.version != version:
            return
        done, begun = worker.gpu.finish(self._now_s)
        self._note_begun(begun)
        self._jobs[done.job].answer(done.output_tokens)
        worker.drop(done)
        self._open -= 1
        self.measures.note_end(done.job, done.effort, self._now_s)
        self._expect_end(worker)

    def _given_back(self, what: tuple[SimulatedWorker, Work]) -> None:
        worker, work = what
        if worker.has(work):  # else it has ended meanwhile, or the worker has
            generated = worker.gpu.generated(work, self._now_s)
            self._note_begun(worker.gpu.withdraw(work, self._now_s))
            self._expect_end(worker)
            worker.drop(work)
            worker.given_back += 1
            self._jobs[work.job].give_back(work.index, generated, count_attempt=False)
            self.measures.note_move(work.job, work.index)

    def _note_begun(self, begun: Sequence[Work]) -> None:
        for work in begun:
            self.measures.note_start(work.job, self._now_s)

    def _expect_end(self, worker: SimulatedWorker) -> None:
        end_s = worker.gpu.next_end_s()
        if end_s is not None:
            self._at(end_s, "end", (worker, worker.gpu.version))

    # Incidents

    def _death(self, incident: Incident) -> None:
        worker = self._workers[incident.gpu]
        if worker.up:
            lost = worker.crash(self._now_s)
            self._at(self._now_s + DETECT_S, "release", lost)
            self._at(self._now_s + RESTART_S, "restart", worker)

    def _release(self, lost: Sequence[tuple[Work, int]]) -> None:
        for work, saved in lost:
            self._jobs[work.job].give_back(work.index, saved, count_attempt=True)

    def _restart(self, worker: SimulatedWorker) -> None:
        worker.begin(self._now_s)
        self._by_session[worker.session_id] = worker

    def _join(self, incident: Incident) -> None:
        self._workers[incident.gpu].begin(self._now_s)

    def _slow(self, incident: Incident) -> None:
        worker = self._workers[incident.gpu]
        worker.gpu.slow_down(incident.speed, self._now_s)
        self._expect_end(worker)

    def _drain(self, incident: Incident) -> None:
        worker = self._workers[incident.gpu]
        worker.leave(self._now_s)
        self._at(self._now_s + DRAIN_S, "drained", (worker, worker.life))

    def _drained(self, what: tuple[SimulatedWorker, int]) -> None:
        """It gives the rest back, with its tokens so far."""
        worker, life = what
        if worker.up and worker.life == life:
            self.measures.note_left(DRAIN_S)
            for work, saved in worker.crash(self._now_s, checkpoint=1):
                self._jobs[work.job].give_back(work.index, saved, count_attempt=False)

    def _effort(self) -> float:
        return sum(worker.gpu.done_by(self._now_s) for worker in self._workers)

    def _at(self, time_s: float, kind: str, what: object) -> None:
        self._sent += 1
        heappush(self._events, (time_s, self._sent, kind, what))
