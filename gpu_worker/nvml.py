"""One GPU as NVML sees it: its sensors, its memory errors, and the driver's critical errors (Xid)."""

import ctypes
from collections.abc import Callable
from typing import Any

import pynvml

Reading = int | float | str

# The codes after which NVIDIA asks for a reset of the GPU or a restart of the machine; the others are mostly a
# program's own fault, or corrected. https://docs.nvidia.com/deploy/xid-errors
_FATAL_XIDS = frozenset({48, 62, 64, 79, 95, 119, 120, 140})
_ABSENT = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED)
_GONE = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)
_EVENTS_A_READ = 64  # a storm of errors must not hold up the heartbeat


class Gpu:
    """Reads one GPU. No call raises or waits: what NVML refuses to say is left out, and a lost GPU is a reading."""

    def __init__(self, index: int) -> None:
        """`index` is NVML's number, by bus id."""
        self.index = index
        self.fault = ""  # why nothing good comes from this GPU any more
        self._error = ""
        self._handle: Any = None
        self._xids: _XidWatch | None = None
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            self._xids = _XidWatch(self._handle)
        except pynvml.NVMLError as error:
            self._note(error)

    def read(self) -> dict[str, Reading]:
        """What the GPU has sensors for: percent, MiB, °C, W; ECC errors since the driver was loaded; Xid errors."""
        readings: dict[str, Reading] = {}
        if self._handle is not None:
            self._error = ""
            for name, read in _SENSORS.items():
                try:
                    readings[name] = read(self._handle)
                except pynvml.NVMLError as error:
                    self._note(error)
            readings |= self._errors()
        return readings | ({"error": self._error} if self._error else {})

    def close(self) -> None:
        """Give back what NVML holds for us."""
        if self._xids is not None:
            self._xids.close()
            self._xids = None

    def _errors(self) -> dict[str, Reading]:
        if self._xids is None:
            return {}
        try:
            self._xids.look()
        except pynvml.NVMLError as error:
            self._note(error)
        if self._xids.fatal:
            self.fault = f"GPU {self.index} had the critical error Xid {self._xids.fatal}"
        return self._xids.readings

    def _note(self, error: Any) -> None:
        if error.value in _ABSENT:
            return
        self._error = str(error)
        if error.value in _GONE:
            self.fault = f"GPU {self.index}: {error}"


class _XidWatch:
    """Counts the Xid errors of one GPU since it was made."""

    def __init__(self, handle: Any) -> None:
        self.fatal = 0  # the first code after which the GPU needs a reset
        self._handle = handle
        self._count = 0
        self._last = 0
        self._events: Any = None
        try:
            if int(pynvml.nvmlDeviceGetSupportedEventTypes(handle)) & pynvml.nvmlEventTypeXidCriticalError:
                self._events = pynvml.nvmlEventSetCreate()
                pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._events)
        except pynvml.NVMLError:
            self.close()  # without events, as in most virtual machines

    @property
    def readings(self) -> dict[str, Reading]:
        """How many there were, and the last one's code; empty where the GPU does not tell."""
        if self._events is None:
            return {}
        readings: dict[str, Reading] = {"xid_count": self._count}
        return readings | ({"xid_last": self._last} if self._count else {})

    def look(self) -> None:
        """Take the errors that came since the last look, without waiting for one.

        Raises:
            pynvml.NVMLError: NVML cannot say any more.
        """
        for _ in range(_EVENTS_A_READ if self._events is not None else 0):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
            except pynvml.NVMLError_Timeout:  # pyright: ignore[reportAttributeAccessIssue]
                return
            if int(event.eventType) & pynvml.nvmlEventTypeXidCriticalError and _same(event.device, self._handle):
                self._take(int(event.eventData))

    def close(self) -> None:
        """Watch no more."""
        events, self._events = self._events, None
        if events is not None:
            pynvml.nvmlEventSetFree(events)

    def _take(self, code: int) -> None:
        self._count += 1
        self._last = code
        if code in _FATAL_XIDS and not self.fatal:
            self.fatal = code


def count_gpus() -> int:
    """GPUs that NVML sees on this host; 0 without a driver."""
    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return 0


def _same(one: Any, other: Any) -> bool:
    return ctypes.cast(one, ctypes.c_void_p).value == ctypes.cast(other, ctypes.c_void_p).value


def _volatile_ecc(kind: int) -> Callable[[Any], Reading]:
    return lambda handle: int(pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, pynvml.NVML_VOLATILE_ECC))


_SENSORS: dict[str, Callable[[Any], Reading]] = {
    "utilisation_percent": lambda handle: int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
    "memory_used_mib": lambda handle: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) >> 20,
    "memory_total_mib": lambda handle: int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) >> 20,
    "temperature_c": lambda handle: int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
    "power_w": lambda handle: round(pynvml.nvmlDeviceGetPowerUsage(handle) / 1000, 1),
    "ecc_corrected": _volatile_ecc(pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
    "ecc_uncorrected": _volatile_ecc(pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
}
