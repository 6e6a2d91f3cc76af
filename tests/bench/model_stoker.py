"""Stoker around a resident model, from the client's call to the last output."""

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from driver import SamplingParams
from tests.bench.cpu import server_pids
from tests.bench.installation import install
from tests.bench.model_work import Generated, Prompt
from tests.support.cluster import Cluster
from tests.support.process import descendants


class StokerModel:
    """Client, driver, Redis and one worker, each a process; the client is this one."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self._folder = tempfile.TemporaryDirectory(prefix="bench-stoker-")
        self._cluster: Cluster | None = None

    def start(self) -> None:
        """See `Resident`."""
        self._cluster = install(Path(self._folder.name), 1, self._settings)
        self.generate([Prompt(prompt=f"warm {place}", max_tokens=4) for place in range(16)], 120.0)

    def generate(self, work: Sequence[Prompt], timeout_s: float) -> tuple[float, list[Generated]]:
        """See `Resident`."""
        params = [SamplingParams(max_tokens=item.max_tokens, temperature=0.0, ignore_eos=True) for item in work]
        prompts = [item.prompt for item in work]
        started_s = time.perf_counter()
        outputs = self._running.client.submit(prompts, params).get(timeout_s)
        seconds = time.perf_counter() - started_s
        failed = [output for output in outputs if output.error is not None]
        if failed:
            raise RuntimeError(f"{len(failed)} of {len(outputs)} requests failed, the first with: {failed[0].error}")
        return seconds, [Generated(tokens=output.token_ids, text=output.text) for output in outputs]

    @property
    def pids(self) -> list[int]:
        """See `Resident`."""
        processes = [*self._running.drivers, *self._running.workers.values()]
        below = [pid for process in processes for pid in (process.pid, *descendants(process.pid))]
        return [os.getpid(), *below, *server_pids(self._running.server)]

    def close(self) -> None:
        """See `Resident`."""
        if self._cluster is not None:
            self._cluster.stop()
        self._folder.cleanup()

    @property
    def _running(self) -> Cluster:
        if self._cluster is None:
            raise RuntimeError("it was not started")
        return self._cluster
