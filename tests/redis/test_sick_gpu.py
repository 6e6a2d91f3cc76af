"""A worker whose GPU reports a critical error takes no more work, and says why."""

import json
import os
import time

import pytest

from broker.store import Store
from gpu_worker import fitness
from gpu_worker.engine.simulated import SimulatedEngine
from gpu_worker.exits import EXIT_ENGINE
from gpu_worker.runtime import Runtime
from gpu_worker.settings import WorkerSettings
from gpu_worker.telemetry import Telemetry
from tests.support.fake_nvml import FakeGpu, FakeNvml
from tests.support.waiting import wait_until

NAME = "gpu0@host"


@pytest.fixture
def nvml(monkeypatch):
    return FakeNvml(FakeGpu()).install(monkeypatch)


@pytest.fixture
def ended(monkeypatch):
    """How the process would have ended: later is now."""
    ends = []
    monkeypatch.setattr(fitness, "call_later", lambda seconds, call: call())
    monkeypatch.setattr(fitness, "end_process", lambda code, reason: ends.append((code, reason)))
    return ends


@pytest.fixture
def runtime(settings, stage, nvml, ended):
    store = Store(settings)
    store.sessions.open("s", NAME, "i", {"pid": os.getpid()})
    telemetry = Telemetry((0,), time.monotonic)
    made = Runtime(store, WorkerSettings(worker_name=NAME), "s", os.getpid(), telemetry, lambda _: SimulatedEngine())
    made.start()
    yield made
    made.stop()


def beaten(stage, state):
    return wait_until(lambda: (row := stage.session("s")).state == state and row, what=f"a beat that says {state}")


def test_a_healthy_gpu_is_in_the_heartbeat(runtime, stage, ended):
    # The first beat that says "ready" may have been begun before the engine was there.
    readings = wait_until(
        lambda: "kv_used_percent" in (found := json.loads(beaten(stage, "ready").telemetry)) and found,
        what="a beat that tells of the engine",
    )
    assert (readings["gpu0"]["temperature_c"], readings["gpu0"]["xid_count"]) == (61, 0)
    assert readings["kv_used_percent"] == 0
    assert ended == []


def test_a_critical_error_sets_the_worker_aside_at_the_next_beat(runtime, stage, nvml, ended):
    beaten(stage, "ready")
    nvml.gpus[0].xids.append(79)
    row = beaten(stage, "poisoned")
    assert row.reason == "GPU 0 had the critical error Xid 79"
    assert json.loads(row.telemetry)["gpu0"]["xid_last"] == 79
    assert runtime.standing.gives_back
    assert ended == [(EXIT_ENGINE, f"set aside: {row.reason}")]
