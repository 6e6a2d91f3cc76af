"""NVIDIA's management library in place of the real one: C functions with the real signatures, behind the real pynvml.

`install` puts an object where pynvml keeps the loaded `libnvidia-ml.so.1`. Its attributes are C function pointers as a
loaded library's are, without argument types, so that what pynvml passes goes through the C calling convention into the
real structs.
"""

import ctypes
from collections import deque
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, c_int, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass, field
from typing import Any

import pynvml
import pytest

MIB = 1 << 20
_Function = type(ctypes.CDLL(None).abs)  # how a library's function is called when its arguments are not declared


@dataclass(eq=False)
class FakeGpu:
    """One card. `refuses` maps a C function's name, or "" for all, to the error that it gives."""

    used_mib: int = 1_000
    total_mib: int = 80_000
    utilisation: int = 97
    temperature: int = 61
    power_mw: int = 312_345
    ecc: tuple[int, int] = (3, 0)  # corrected, uncorrected
    events: int = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeClock
    xids: deque[int] = field(default_factory=deque)
    refuses: dict[str, int] = field(default_factory=dict)


class FakeNvml:
    """The library; `init_code` is what `nvmlInitWithFlags` returns."""

    def __init__(self, *gpus: FakeGpu, init_code: int = pynvml.NVML_SUCCESS) -> None:
        self.gpus = gpus
        self.init_code = init_code
        self.waits_ms: list[int] = []
        self.event_sets: dict[int, list[FakeGpu]] = {}
        self._callbacks: list[Any] = []  # C holds no reference to them
        self._define("nvmlInitWithFlags", [c_uint], lambda flags: self.init_code)
        self._define("nvmlDeviceGetCount_v2", [POINTER(c_uint)], self._count)
        self._define("nvmlDeviceGetHandleByIndex_v2", [c_uint, POINTER(c_void_p)], self._handle)
        self._sensor("nvmlDeviceGetMemoryInfo", [POINTER(pynvml.c_nvmlMemory_t)], _memory)
        self._sensor("nvmlDeviceGetUtilizationRates", [POINTER(pynvml.c_nvmlUtilization_t)], _utilisation)
        self._sensor("nvmlDeviceGetTemperature", [c_uint, POINTER(c_uint)], _temperature)
        self._sensor("nvmlDeviceGetPowerUsage", [POINTER(c_uint)], _power)
        self._sensor("nvmlDeviceGetTotalEccErrors", [c_uint, c_uint, POINTER(c_ulonglong)], _ecc)
        self._sensor("nvmlDeviceGetSupportedEventTypes", [POINTER(c_ulonglong)], _event_types)
        self._sensor("nvmlDeviceRegisterEvents", [c_ulonglong, c_void_p], self._register)
        self._define("nvmlEventSetCreate", [POINTER(c_void_p)], self._create_events)
        self._define("nvmlEventSetWait_v2", [c_void_p, POINTER(pynvml.c_nvmlEventData_t), c_uint], self._wait)
        self._define("nvmlEventSetFree", [c_void_p], self._free_events)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> "FakeNvml":
        """Let pynvml find this library loaded, until the test ends."""
        monkeypatch.setattr(pynvml, "nvmlLib", self)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return self

    def _define(self, name: str, arguments: list[Any], function: Callable[..., int]) -> None:
        callback = CFUNCTYPE(c_int, *arguments)(function)
        self._callbacks.append(callback)
        setattr(self, name, _Function(ctypes.cast(callback, c_void_p).value))

    def _sensor(self, name: str, arguments: list[Any], read: Callable[..., None]) -> None:
        def function(handle: int, *args: Any) -> int:
            gpu = self.gpus[_index(handle)]
            code = gpu.refuses.get(name, gpu.refuses.get("", pynvml.NVML_SUCCESS))
            if code == pynvml.NVML_SUCCESS:
                read(gpu, *args)
            return code

        self._define(name, [c_void_p, *arguments], function)

    def _count(self, count: Any) -> int:
        count[0] = len(self.gpus)
        return pynvml.NVML_SUCCESS

    def _handle(self, index: int, handle: Any) -> int:
        if index >= len(self.gpus):
            return pynvml.NVML_ERROR_INVALID_ARGUMENT
        handle[0] = _address(index)
        return self.gpus[index].refuses.get("nvmlDeviceGetHandleByIndex_v2", pynvml.NVML_SUCCESS)

    def _create_events(self, events: Any) -> int:
        events[0] = 0x9000 + len(self.event_sets)
        self.event_sets[events[0]] = []
        return pynvml.NVML_SUCCESS

    def _register(self, gpu: FakeGpu, types: int, events: int) -> None:
        assert types == pynvml.nvmlEventTypeXidCriticalError
        self.event_sets[events].append(gpu)

    def _wait(self, events: int, data: Any, timeout_ms: int) -> int:
        self.waits_ms.append(timeout_ms)
        for gpu in self.event_sets[events]:
            if "" in gpu.refuses:
                return gpu.refuses[""]
            if gpu.xids:
                data[0].device = ctypes.cast(_address(self.gpus.index(gpu)), pynvml.c_nvmlDevice_t)
                data[0].eventType = pynvml.nvmlEventTypeXidCriticalError
                data[0].eventData = gpu.xids.popleft()
                return pynvml.NVML_SUCCESS
        return pynvml.NVML_ERROR_TIMEOUT

    def _free_events(self, events: int) -> int:
        del self.event_sets[events]
        return pynvml.NVML_SUCCESS


def _address(index: int) -> int:
    return 0x1000 * (index + 1)


def _index(handle: int) -> int:
    return handle // 0x1000 - 1


def _memory(gpu: FakeGpu, memory: Any) -> None:
    memory[0].total, memory[0].used = gpu.total_mib * MIB, gpu.used_mib * MIB
    memory[0].free = memory[0].total - memory[0].used


def _utilisation(gpu: FakeGpu, rates: Any) -> None:
    rates[0].gpu, rates[0].memory = gpu.utilisation, 1


def _temperature(gpu: FakeGpu, sensor: int, temperature: Any) -> None:
    assert sensor == pynvml.NVML_TEMPERATURE_GPU
    temperature[0] = gpu.temperature


def _power(gpu: FakeGpu, power: Any) -> None:
    power[0] = gpu.power_mw


def _ecc(gpu: FakeGpu, kind: int, counter: int, count: Any) -> None:
    assert counter == pynvml.NVML_VOLATILE_ECC
    count[0] = gpu.ecc[kind]


def _event_types(gpu: FakeGpu, types: Any) -> None:
    types[0] = gpu.events
