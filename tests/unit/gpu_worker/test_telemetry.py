import json

import pytest

from gpu_worker.engine.base import Capacity, Load
from gpu_worker.telemetry import Telemetry
from tests.support.fake_nvml import FakeGpu, FakeNvml

CAPACITY = Capacity(slots=4, kv_tokens=1_000, context_tokens=500)


class Time:
    now_s = 100.0

    def __call__(self):
        return self.now_s


def load(tokens=0, **others):
    return Load(running=1, waiting=0, steps=1, generated_tokens=tokens, **others)


def test_the_process_is_read_without_a_gpu_and_without_an_engine():
    readings = json.loads(Telemetry((), Time()).read())
    assert sorted(readings) == ["cpu_percent", "rss_mib"]
    assert readings["rss_mib"] > 1
    assert readings["cpu_percent"] >= 0


def test_each_gpu_is_under_its_name_and_has_its_fault(monkeypatch):
    nvml = FakeNvml(FakeGpu(), FakeGpu()).install(monkeypatch)
    telemetry = Telemetry((0, 1), Time())
    nvml.gpus[0].xids.append(62)
    nvml.gpus[1].xids.append(95)
    readings = json.loads(telemetry.read())
    assert (readings["gpu0"]["xid_last"], readings["gpu1"]["xid_last"]) == (62, 95)
    assert telemetry.fault == "GPU 0 had the critical error Xid 62; GPU 1 had the critical error Xid 95"
    telemetry.close()
    assert not nvml.event_sets


def test_tokens_per_second_are_those_since_the_last_reading():
    time = Time()
    telemetry = Telemetry((), time)
    rates = []
    for later_s, tokens in ((0, 500), (2, 600), (0.1, 900), (0.9, 650), (1, 650), (1, 10)):
        time.now_s += later_s
        rates.append(json.loads(telemetry.read(CAPACITY, load(tokens)))["tokens_per_s"])
    # The first has nothing before it; the third comes too soon to say anything new; the last began to count anew.
    assert rates == [0, 50, 50, 50, 0, 0]


@pytest.mark.parametrize(
    ("counts", "shares"),
    [
        ({}, (0, 0)),
        ({"kv_tokens_used": 125, "prompt_tokens": 300, "cached_prompt_tokens": 100}, (12.5, 33.3)),
    ],
)
def test_cache_use_and_prefix_hits_are_shares(counts, shares):
    readings = json.loads(Telemetry((), Time()).read(CAPACITY, load(**counts)))
    assert (readings["kv_used_percent"], readings["prefix_hit_percent"]) == shares
