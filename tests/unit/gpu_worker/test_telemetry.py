"""Against a fake NVML, at the seam to pynvml: no machine of ours has the card."""

import json
from types import SimpleNamespace

import pynvml
import pytest

from gpu_worker import telemetry

MIB = 1 << 20


class FakeNvml:
    """Two GPUs; the second lacks its sensors."""

    NVMLError = pynvml.NVMLError
    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU

    def __init__(self, driver=True):
        self._driver = driver

    def nvmlInit(self):
        if not self._driver:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(used=(handle + 1) * 1000 * MIB, total=80_000 * MIB)

    def nvmlDeviceGetUtilizationRates(self, handle):
        self._refuse(handle)
        return SimpleNamespace(gpu=97)

    def nvmlDeviceGetTemperature(self, handle, sensor):
        assert sensor == self.NVML_TEMPERATURE_GPU
        self._refuse(handle)
        return 61

    def nvmlDeviceGetPowerUsage(self, handle):
        self._refuse(handle)
        return 312_345  # mW

    def _refuse(self, handle):
        if handle == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


@pytest.fixture
def nvml(monkeypatch):
    def install(**options):
        monkeypatch.setattr(telemetry, "pynvml", FakeNvml(**options))

    install()
    return install


@pytest.mark.usefixtures("nvml")
def test_a_gpus_readings_have_their_units_in_their_names():
    assert json.loads(telemetry.open_telemetry((0,)).read()) == {
        "gpu0": {
            "memory_used_mib": 1000,
            "memory_total_mib": 80_000,
            "utilisation_percent": 97,
            "temperature_c": 61,
            "power_w": 312.3,
        }
    }


@pytest.mark.usefixtures("nvml")
def test_what_a_card_lacks_is_left_out():
    assert json.loads(telemetry.open_telemetry((1,)).read()) == {
        "gpu1": {"memory_used_mib": 2000, "memory_total_mib": 80_000}
    }


@pytest.mark.usefixtures("nvml")
def test_several_gpus_are_read_each_by_its_number():
    assert sorted(json.loads(telemetry.open_telemetry((0, 1)).read())) == ["gpu0", "gpu1"]


def test_gpus_are_counted_and_none_without_a_driver(nvml):
    assert telemetry.count_gpus() == 2
    nvml(driver=False)
    assert telemetry.count_gpus() == 0


def test_without_a_gpu_the_process_is_read():
    readings = json.loads(telemetry.open_telemetry(()).read())
    assert sorted(readings) == ["cpu_percent", "rss_mib"]
    assert readings["rss_mib"] > 1
    assert readings["cpu_percent"] >= 0
