"""Kills and cuts things at random, and knows when what it hurt is well again."""

import os
import random
import signal
import time
from collections.abc import Callable

import psutil

from broker.errors import BrokerUnavailableError
from tests.support.cluster import Cluster

FROZEN_S = 4.0  # longer than the heartbeat timeout of the cluster


class Wound:
    """One thing that was hurt, and how long it took until all that it held was taken care of."""

    def __init__(self, kind: str, is_healed: Callable[[], bool]) -> None:
        self.kind = kind
        self._is_healed = is_healed
        self._hurt_s = time.monotonic()
        self.healed_after_s: float | None = None

    def look(self) -> bool:
        """Whether it is well again."""
        if self.healed_after_s is None:
            try:
                if self._is_healed():
                    self.healed_after_s = time.monotonic() - self._hurt_s
            except BrokerUnavailableError:
                return False
        return self.healed_after_s is not None


class Monkey:
    """Hurts one thing of the cluster at a time; what is killed for good is started again, as an init system would."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._frozen: list[tuple[float, list[int]]] = []
        self._kinds: dict[Callable[[], Wound], int] = {
            self.kill_worker: 8,
            self.kill_host: 3,
            self.freeze_host: 2,
            self.kill_driver: 3,
            self.cut_connections: 2,
            self.kill_redis: 2,
        }

    def strike(self) -> Wound:
        """Hurt something."""
        kinds = list(self._kinds)
        return self._rng.choices(kinds, weights=list(self._kinds.values()))[0]()

    def kill_worker(self) -> Wound:
        """SIGKILL of a worker's process; its supervisor sees it."""
        name = self._any_worker()
        wound = self._wound("worker killed", name)
        self._kill(self._cluster.workers[name].child_pid)
        return wound

    def kill_host(self) -> Wound:
        """SIGKILL of supervisor and worker together; only the missing heartbeat tells."""
        name = self._any_worker()
        wound = self._wound("host killed", name)
        worker = self._cluster.workers[name]
        for process in (*psutil.Process(worker.pid).children(recursive=True), psutil.Process(worker.pid)):
            self._kill(process.pid)
        worker.wait()
        self._cluster.start_worker(name)
        return wound

    def freeze_host(self) -> Wound:
        """SIGSTOP of supervisor and worker until their lease is over, then SIGCONT."""
        name = self._any_worker()
        wound = self._wound("host frozen", name)
        worker = self._cluster.workers[name]
        pids = [worker.pid, worker.child_pid]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        self._frozen.append((time.monotonic() + FROZEN_S, pids))
        return wound

    def kill_driver(self) -> Wound:
        """SIGKILL of a driver, perhaps the one that leads; another is started."""
        driver = self._rng.choice(self._cluster.drivers)
        self._cluster.drivers.remove(driver)
        driver.send(signal.SIGKILL)
        driver.wait()
        self._cluster.start_driver()
        return Wound("driver killed", self._cluster.store.has_leader)

    def cut_connections(self) -> Wound:
        """CLIENT KILL of every connection but our own."""
        for kind in ("normal", "pubsub"):
            self._cluster.redis.client_kill_filter(_type=kind, skipme=True)
        return self._progress_wound("connections cut")

    def kill_redis(self) -> Wound:
        """SIGKILL of the server, which is then started again with its data."""
        self._cluster.kill_server()
        self._cluster.restart_server()
        return self._progress_wound("Redis killed")

    def thaw(self, *, all_of_them: bool = False) -> None:
        """Let frozen processes go on whose time is over."""
        now_s = time.monotonic()
        over = [item for item in self._frozen if all_of_them or item[0] <= now_s]
        for item in over:
            self._frozen.remove(item)
            for pid in item[1]:
                _signal(pid, signal.SIGCONT)

    def _any_worker(self) -> str:
        frozen = {pid for _, pids in self._frozen for pid in pids}
        return self._rng.choice([name for name, worker in self._cluster.workers.items() if worker.pid not in frozen])

    def _kill(self, pid: int) -> None:
        _signal(pid, signal.SIGKILL)

    def _wound(self, kind: str, name: str) -> Wound:
        """Healed once the session that is hurt holds nothing any more."""
        session = self._cluster.session(name)
        queries = self._cluster.store.queries
        return Wound(kind, lambda: session is None or not queries.batches(session.id))

    def _progress_wound(self, kind: str) -> Wound:
        """Healed once an output more is committed."""
        queries = self._cluster.store.queries

        def done() -> dict[str, int]:
            return {job.id: job.done for job in queries.open_jobs()}

        def is_healed() -> bool:
            now = done()
            return any(job_id not in now or now[job_id] > count for job_id, count in before.items())

        before = done()
        return Wound(kind, is_healed)


def _signal(pid: int, number: signal.Signals) -> None:
    if psutil.pid_exists(pid):
        os.kill(pid, number)
