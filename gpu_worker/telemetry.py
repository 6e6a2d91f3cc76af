"""What the device is doing, for people: NVML where the worker has a GPU, the process's CPU and memory otherwise."""

import json
from typing import Any, Protocol

import psutil
import pynvml


class Telemetry(Protocol):
    """Reads the device's state."""

    def read(self) -> str:
        """A JSON object; names carry units."""
        ...


class CpuTelemetry:
    """CPU share and resident memory of this process."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._process.cpu_percent()  # the first call only sets the start of the interval

    def read(self) -> str:
        """CPU in percent of one core, memory in MiB."""
        with self._process.oneshot():
            cpu, rss = self._process.cpu_percent(), self._process.memory_info().rss
        return json.dumps({"cpu_percent": round(cpu, 1), "rss_mib": rss >> 20})


class GpuTelemetry:
    """NVML's readings of the worker's GPUs. Not run on a GPU yet: tested against a fake NVML."""

    def __init__(self, indices: tuple[int, ...]) -> None:
        pynvml.nvmlInit()
        self._handles = {index: pynvml.nvmlDeviceGetHandleByIndex(index) for index in indices}

    def read(self) -> str:
        """Per GPU: utilisation in percent, memory in MiB, temperature in °C, power in W."""
        return json.dumps({f"gpu{index}": _read_gpu(handle) for index, handle in self._handles.items()})


def count_gpus() -> int:
    """GPUs that NVML sees on this host; 0 without a driver."""
    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return 0


def open_telemetry(gpus: tuple[int, ...]) -> Telemetry:
    """The right reader for the worker's device."""
    return GpuTelemetry(gpus) if gpus else CpuTelemetry()


def _read_gpu(handle: Any) -> dict[str, Any]:
    memory: Any = pynvml.nvmlDeviceGetMemoryInfo(handle)
    readings: dict[str, Any] = {"memory_used_mib": memory.used >> 20, "memory_total_mib": memory.total >> 20}
    # Not every card has every sensor; what it lacks is left out.
    for name, read in (
        ("utilisation_percent", lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        ("temperature_c", lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
        ("power_w", lambda: round(pynvml.nvmlDeviceGetPowerUsage(handle) / 1000, 1)),
    ):
        try:
            readings[name] = read()
        except pynvml.NVMLError:
            continue
    return readings
