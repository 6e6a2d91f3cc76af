"""Through the real pynvml into C functions that fill the real structs; and on a real GPU where there is one."""

import pynvml
import pytest

from gpu_worker.nvml import Gpu, count_gpus
from tests.support.fake_nvml import FakeGpu, FakeNvml

LOST = pynvml.NVML_ERROR_GPU_IS_LOST
UNSUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
HEALTHY = {
    "utilisation_percent": 97,
    "memory_used_mib": 1_000,
    "memory_total_mib": 80_000,
    "temperature_c": 61,
    "power_w": 312.3,
    "ecc_corrected": 3,
    "ecc_uncorrected": 0,
    "xid_count": 0,
}


@pytest.fixture
def install(monkeypatch):
    return lambda *gpus, **options: FakeNvml(*gpus, **options).install(monkeypatch)


def test_a_gpus_readings_have_their_units_in_their_names(install):
    install(FakeGpu())
    gpu = Gpu(0)
    assert gpu.read() == HEALTHY
    assert gpu.fault == ""


def test_each_gpu_is_read_by_its_number(install):
    install(FakeGpu(), FakeGpu(used_mib=70_000, temperature=88, ecc=(0, 2)))
    assert Gpu(0).read() == HEALTHY
    other = {"memory_used_mib": 70_000, "temperature_c": 88, "ecc_corrected": 0, "ecc_uncorrected": 2}
    assert Gpu(1).read() == HEALTHY | other


def test_what_a_card_lacks_is_left_out(install):
    refuses = {"nvmlDeviceGetTotalEccErrors": UNSUPPORTED, "nvmlDeviceGetPowerUsage": UNSUPPORTED}
    install(FakeGpu(refuses=refuses, events=0))
    missing = {"ecc_corrected", "ecc_uncorrected", "power_w", "xid_count"}
    assert Gpu(0).read() == {name: value for name, value in HEALTHY.items() if name not in missing}


def test_a_card_that_has_no_sensor_at_all_has_no_reading(install):
    install(FakeGpu(refuses={"": UNSUPPORTED}))
    gpu = Gpu(0)
    assert gpu.read() == {}
    assert gpu.fault == ""


def test_what_cannot_be_read_is_told_and_passes(install):
    nvml = install(FakeGpu())
    gpu = Gpu(0)
    nvml.gpus[0].refuses["nvmlDeviceGetTemperature"] = pynvml.NVML_ERROR_UNKNOWN
    assert gpu.read() == {k: v for k, v in HEALTHY.items() if k != "temperature_c"} | {"error": "Unknown Error"}
    nvml.gpus[0].refuses.clear()
    assert gpu.read() == HEALTHY
    assert gpu.fault == ""


def test_xid_errors_are_counted_and_never_waited_for(install):
    nvml = install(FakeGpu(), FakeGpu())
    gpu, neighbour = Gpu(0), Gpu(1)
    nvml.gpus[0].xids.extend((13, 31))
    readings = gpu.read()
    assert (readings["xid_count"], readings["xid_last"]) == (2, 31)
    nvml.gpus[0].xids.append(43)
    readings = gpu.read()
    assert (readings["xid_count"], readings["xid_last"]) == (3, 43)
    assert neighbour.read()["xid_count"] == 0
    assert gpu.fault == ""  # those are programs' own
    assert set(nvml.waits_ms) == {0}


def test_after_a_critical_xid_error_the_gpu_is_at_fault(install):
    nvml = install(FakeGpu())
    gpu = Gpu(0)
    nvml.gpus[0].xids.extend((79, 45))
    assert gpu.read()["xid_last"] == 45
    assert gpu.fault == "GPU 0 had the critical error Xid 79"


def test_a_storm_of_errors_does_not_hold_up_the_reading(install):
    nvml = install(FakeGpu())
    gpu = Gpu(0)
    nvml.gpus[0].xids.extend([13] * 10_000)
    first = gpu.read()["xid_count"]
    assert 0 < first < 1_000
    assert gpu.read()["xid_count"] == 2 * first


def test_a_lost_gpu_is_a_reading_and_a_fault(install):
    nvml = install(FakeGpu())
    gpu = Gpu(0)
    nvml.gpus[0].refuses[""] = LOST
    assert gpu.read() == {"error": "GPU is lost", "xid_count": 0}
    assert gpu.fault == "GPU 0: GPU is lost"


@pytest.mark.parametrize("lost", [{"": LOST}, {"nvmlDeviceGetHandleByIndex_v2": LOST}])
def test_a_gpu_that_is_lost_from_the_start_is_one_too(install, lost):
    install(FakeGpu(refuses=lost))
    gpu = Gpu(0)
    assert gpu.read() == {"error": "GPU is lost"}
    assert gpu.fault == "GPU 0: GPU is lost"


def test_without_a_driver_there_is_an_error_to_read_and_no_gpu_to_count(install):
    install(FakeGpu(), init_code=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    gpu = Gpu(0)
    assert gpu.read() == {"error": "Driver Not Loaded"}
    assert gpu.fault == ""
    assert count_gpus() == 0


def test_gpus_are_counted(install):
    install(FakeGpu(), FakeGpu())
    assert count_gpus() == 2


def test_closing_frees_the_events_once(install):
    nvml = install(FakeGpu())
    gpu = Gpu(0)
    assert nvml.event_sets
    gpu.close()
    gpu.close()
    assert not nvml.event_sets
    assert "xid_count" not in gpu.read()


@pytest.mark.skipif(count_gpus() == 0, reason="no NVIDIA GPU on this machine")
def test_a_real_gpu_is_read():
    gpu = Gpu(0)
    readings = gpu.read()
    gpu.close()
    assert "error" not in readings
    assert 0 < readings["memory_used_mib"] <= readings["memory_total_mib"]
    assert 0 <= readings["utilisation_percent"] <= 100
