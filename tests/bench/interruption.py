"""A worker of Stoker's killed in the middle of a request, with the simulated engine: what becomes of its requests."""

import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from broker.records import Session
from driver import Job, SamplingParams
from gpu_worker.engine.meter import read_meters
from tests.bench.installation import install
from tests.support.cluster import Cluster
from tests.support.waiting import wait_until

CHILD, WHOLE = KINDS = ("child", "whole")
WORKERS = 2
START_S = 120.0
LOOK_S = 0.01


class Killing(msgspec.Struct, frozen=True, kw_only=True):
    """One workload for all: requests of so many tokens, one at a time in each of two workers."""

    requests: int = 8
    tokens: int = 100
    tokens_per_s: float = 250.0
    limit_s: float = 15.0  # after the kill; what is not there by then counts as lost


def kill_workers(plan: Killing, kinds: Sequence[str] = KINDS, *, heartbeat_timeout_s: float = 10.0) -> dict[str, float]:
    """An undisturbed run; then for each kind one in which a worker's process, or it and its supervisor, are killed.

    Figures by kind: `seconds` to the last output (none when some are missing after `limit_s`), `rerun_s` from the kill
    until a request of the killed worker's is claimed by another, `again_tokens`, `lost`, `twice`.
    """
    with tempfile.TemporaryDirectory(prefix="bench-stoker-") as name:
        folder = Path(name)
        meters = folder / "meters"
        meters.mkdir()
        settings = {
            "STOKER_ENGINE": "simulated",
            "STOKER_SIMULATED_SLOTS": "1",
            "STOKER_SIMULATED_TOKENS_PER_S": str(plan.tokens_per_s),
            "STOKER_HEARTBEAT_TIMEOUT": str(heartbeat_timeout_s),
            "STOKER_SIMULATED_METER": str(meters),
        }
        cluster = install(folder, WORKERS, settings)
        try:
            return _Interruption(plan, cluster, meters).figures(kinds)
        finally:
            for worker in cluster.workers.values():
                if not worker.is_running:  # its child may have outlived it for a moment
                    worker.wait()
            cluster.stop()


class _Interruption:
    def __init__(self, plan: Killing, cluster: Cluster, meters: Path) -> None:
        self._plan = plan
        self._cluster = cluster
        self._meters = meters

    def figures(self, kinds: Sequence[str]) -> dict[str, float]:
        self._undisturbed_s(2)  # everything is warm
        found = {"undisturbed_s": self._undisturbed_s(self._plan.requests)}
        for kind in kinds:
            found |= self._disturbed(kind)
        return found

    def _undisturbed_s(self, count: int) -> float:
        started_s, job = time.monotonic(), self._submit(count)
        assert _done(job, count, START_S), "not all outputs came, though nothing was killed"
        return time.monotonic() - started_s

    def _disturbed(self, kind: str) -> dict[str, float]:
        count = self._plan.requests
        self._cluster.ready(timeout=START_S)
        tokens_before = read_meters(self._meters)
        started_s, job = time.monotonic(), self._submit(count)
        wait_until(lambda: job.progress().done >= count // 4, what="a quarter of the outputs")
        time.sleep(0.5 * self._plan.tokens / self._plan.tokens_per_s)  # in the middle of a request
        victim, hurt = self._victim(job)
        killed_s = time.monotonic()
        self._kill(victim, whole=kind == WHOLE)
        found: dict[str, float] = {}
        if _seen(lambda: self._runs_elsewhere(victim, hurt), self._plan.limit_s):
            found["rerun_s"] = time.monotonic() - killed_s
        if _done(job, count, self._plan.limit_s - (time.monotonic() - killed_s)):
            found["seconds"] = time.monotonic() - started_s
            outputs = [output.index for output in job.as_completed(self._plan.limit_s)]
            found["twice"] = len(outputs) - len(set(outputs))
        done = job.progress().done
        found["lost"] = count - done
        found["again_tokens"] = read_meters(self._meters) - tokens_before - self._plan.tokens * done
        return {f"{kind}_{name}": float(value) for name, value in found.items()}

    def _submit(self, count: int) -> Job:
        prompts = [f"request {number}" for number in range(count)]
        return self._cluster.client.submit(prompts, SamplingParams(max_tokens=self._plan.tokens, ignore_eos=True))

    def _victim(self, job: Job) -> tuple[Session, set[int]]:
        """A worker that generates, and which requests of the job it has in hand."""
        for row in self._cluster.client.workers():
            if hurt := self._in_hand(row):
                return row, hurt
        raise AssertionError(f"nobody has a request of {job} in hand")

    def _in_hand(self, row: Session) -> set[int]:
        queries = self._cluster.store.queries
        claimed = [batch.id for batch in queries.batches(row.id) if batch.state == "claimed"]
        return {index for batch in claimed for index in queries.batch_indices(batch)}

    def _kill(self, victim: Session, *, whole: bool) -> None:
        if whole:
            self._cluster.workers[victim.worker.partition("@")[0]].send_both(signal.SIGKILL)
        else:
            os.kill(victim.pid, signal.SIGKILL)

    def _runs_elsewhere(self, victim: Session, hurt: set[int]) -> bool:
        return any(self._in_hand(row) & hurt for row in self._cluster.client.workers() if row.id != victim.id)


def _done(job: Job, count: int, limit_s: float) -> bool:
    return _seen(lambda: job.progress().done == count, limit_s)


def _seen(predicate: Callable[[], bool], limit_s: float) -> bool:
    deadline_s = time.monotonic() + limit_s
    while not predicate():
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(LOOK_S)
    return True
