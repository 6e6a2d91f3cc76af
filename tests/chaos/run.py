"""One chaos run: feed jobs, strike at random, wait for the end, count."""

import random
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec

from broker.messages import Output, Request, SamplingParams
from broker.patience import Patience
from driver import Delta, Job
from driver.feed import JobFeed
from gpu_worker.engine.meter import read_meters
from tests.chaos.monkey import Monkey, Wound
from tests.support.cluster import Cluster
from tests.support.verdict import undisturbed

JOBS_AT_ONCE = 2
STREAMING_SHARE = 0.2
TICK_S = 0.05
END_TIMEOUT_S = 180.0


class ChaosOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to run; `requests` is the size of a job, two of which are always open."""

    seconds: float = 60.0
    workers: int = 4
    requests: int = 300
    seed: int = 0
    interval_s: float = 2.0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it; `worst_s` is the longest time to take care of what was hurt, by kind of wound."""

    requests: int
    outputs: int
    lost: int
    duplicates: int
    wrong: int
    torn: int  # texts that did not come as they are, when they were read while they were generated
    failed: int
    dropped: int
    strikes: dict[str, int]
    worst_s: dict[str, float]
    tokens: int
    recomputed: int
    seconds: float

    @property
    def recomputed_share(self) -> float:
        """Tokens generated again, as a share of those that were needed."""
        return self.recomputed / max(self.tokens, 1)

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost, doubled, wrong or failed."""
        return not (self.lost or self.duplicates or self.wrong or self.torn or self.failed)


def run_chaos(options: ChaosOptions, say: Callable[[str], None] = lambda _: None) -> Report:
    """Run it in a folder of its own; every process is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="stoker-chaos-") as folder:
        meters = Path(folder) / "meters"
        meters.mkdir()
        settings = {
            "STOKER_SIMULATED_METER": str(meters),
            "STOKER_RESTART_BACKOFF": "0",
            # These deaths are nobody's fault: no request may be given up for them.
            "STOKER_MAX_ATTEMPTS": "1000000",
        }
        cluster = Cluster(Path(folder), settings)
        try:
            for _ in range(2):
                cluster.start_driver()
            for i in range(options.workers):
                cluster.start_worker(f"w{i}")
            cluster.ready()
            return _Chaos(cluster, options, meters, say).run()
        finally:
            cluster.stop()


class _Chaos:
    def __init__(self, cluster: Cluster, options: ChaosOptions, meters: Path, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._options = options
        self._meters = meters
        self._say = say
        self._rng = random.Random(options.seed)
        self._monkey = Monkey(cluster, self._rng)
        self._jobs: list[tuple[Job, list[Request]]] = []
        self._readers = ThreadPoolExecutor()
        self._read: list[Future[list[Delta]]] = []
        self._wounds: list[Wound] = []
        self._insist = Patience()

    def run(self) -> Report:
        started_s = time.monotonic()
        strike_s = started_s + self._options.interval_s
        while (now_s := time.monotonic()) < started_s + self._options.seconds:
            self._feed()
            if now_s >= strike_s:
                strike_s = now_s + self._options.interval_s
                self._wounds.append(self._strike())
            self._care()
            time.sleep(TICK_S)
        self._say(f"{len(self._wounds)} strikes; waiting for the end")
        self._monkey.thaw(all_of_them=True)
        self._wait_for_end()
        return self._report(time.monotonic() - started_s)

    def _feed(self) -> None:
        open_jobs = sum(not self._is_done(job) for job, _ in self._jobs)
        for _ in range(JOBS_AT_ONCE - open_jobs):
            number = len(self._jobs)
            asked = [self._request(f"job {number} request {i}") for i in range(self._options.requests)]
            # Not `submit`: what an outage interrupts must go on, not start again as another job.
            client = self._cluster.client
            feed = JobFeed(client.store.ledger, str(uuid.uuid4()), "", insist=self._insist, leases=client.leases)
            feed.add_and_seal(asked)
            job = self._cluster.client.job(feed.job_id)
            self._jobs.append((job, asked))
            self._read.append(self._readers.submit(self._insist, partial(self._read_along, job)))

    def _read_along(self, job: Job) -> list[Delta]:
        return list(job.stream(self._options.seconds + END_TIMEOUT_S))

    def _request(self, prompt: str) -> Request:
        # Mostly short, some long enough for checkpoints. Greedy, as a sampled one that streams would get a seed.
        tokens = self._rng.choice((8, 16, 32, 64, 128, 400))
        params = SamplingParams(max_tokens=tokens, temperature=0)
        return Request(params=params, prompt=prompt, stream=self._rng.random() < STREAMING_SHARE)

    def _strike(self) -> Wound:
        wound = self._insist(self._monkey.strike)
        self._say(f"{wound.kind}")
        return wound

    def _care(self) -> None:
        self._monkey.thaw()
        for wound in self._wounds:
            wound.look()

    def _is_done(self, job: Job) -> bool:
        return self._insist(lambda: job.state) == "done"

    def _wait_for_end(self) -> None:
        deadline_s = time.monotonic() + END_TIMEOUT_S
        while not all(self._is_done(job) for job, _ in self._jobs) and time.monotonic() < deadline_s:
            self._care()
            time.sleep(TICK_S)
        self._care()

    def _report(self, seconds: float) -> Report:
        outputs = [list(self._cluster.store.outputs(job.id).drain()) for job, _ in self._jobs]
        asked = [requests for _, requests in self._jobs]
        distinct = [{output.index for output in job} for job in outputs]
        total = sum(len(requests) for requests in asked)
        count = sum(len(job) for job in outputs)
        tokens = sum(output.usage.completion_tokens for job in outputs for output in job)
        kinds = sorted({wound.kind for wound in self._wounds})
        return Report(
            requests=total,
            outputs=count,
            lost=total - sum(len(indices) for indices in distinct),
            duplicates=count - sum(len(indices) for indices in distinct),
            wrong=sum(_wrong(requests, job) for requests, job in zip(asked, outputs, strict=True)),
            torn=sum(_torn(read.result(END_TIMEOUT_S), job) for read, job in zip(self._read, outputs, strict=True)),
            failed=sum(output.error is not None for job in outputs for output in job),
            dropped=sum(self._cluster.store.queries.job(job.id).dropped for job, _ in self._jobs),
            strikes={kind: sum(wound.kind == kind for wound in self._wounds) for kind in kinds},
            worst_s={kind: max(self._healing(kind), default=float("inf")) for kind in kinds},
            tokens=tokens,
            recomputed=read_meters(self._meters) - tokens,
            seconds=seconds,
        )

    def _healing(self, kind: str) -> list[float]:
        return [
            wound.healed_after_s for wound in self._wounds if wound.kind == kind and wound.healed_after_s is not None
        ]


def _wrong(asked: list[Request], outputs: list[Output]) -> int:
    expected = undisturbed(asked)
    return sum(output.text != expected[output.index].text for output in outputs)


def _torn(deltas: list[Delta], outputs: list[Output]) -> int:
    texts: dict[int, str] = {}
    torn: set[int] = set()
    for delta in deltas:
        if delta.offset != len(texts.get(delta.index, "")):
            torn.add(delta.index)
        texts[delta.index] = texts.get(delta.index, "") + delta.text
    torn |= {output.index for output in outputs if texts.get(output.index) != output.text}
    return len(torn)
