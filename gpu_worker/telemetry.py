"""What the worker's device and engine are doing, for people: NVML where it has GPUs, the process's CPU and memory."""

import json
from collections.abc import Callable
from typing import Any

import psutil

from gpu_worker.engine.base import Capacity, Load
from gpu_worker.engine_rate import EngineRate
from gpu_worker.nvml import Gpu


class Telemetry:
    """Reads process, GPUs and engine; `gpus` are NVML's numbers."""

    def __init__(self, gpus: tuple[int, ...], now_s: Callable[[], float]) -> None:
        self._process = psutil.Process()
        self._process.cpu_percent()  # the first call only sets the start of the interval
        self._gpus = [Gpu(index) for index in gpus]
        self._rate = EngineRate(now_s)

    @property
    def fault(self) -> str:
        """Why the worker should take no more work, as of the last reading; empty when nothing is known."""
        return "; ".join(gpu.fault for gpu in self._gpus if gpu.fault)

    def read(self, capacity: Capacity | None = None, load: Load | None = None) -> str:
        """A JSON object whose names carry units; `capacity` and `load` are the engine's, once it is there."""
        readings: dict[str, Any] = self._process_readings()
        if capacity is not None and load is not None:
            readings |= self._rate.read(capacity, load)
        readings |= {f"gpu{gpu.index}": gpu.read() for gpu in self._gpus}
        return json.dumps(readings)

    def close(self) -> None:
        """Give back what the readers hold."""
        for gpu in self._gpus:
            gpu.close()

    def _process_readings(self) -> dict[str, Any]:
        """CPU in percent of one core, memory in MiB."""
        with self._process.oneshot():
            cpu, rss = self._process.cpu_percent(), self._process.memory_info().rss
        return {"cpu_percent": round(cpu, 1), "rss_mib": rss >> 20}
