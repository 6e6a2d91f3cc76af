import msgspec
import pytest

from gpu_worker.engine.simulated import SimulatedEngine, SimulatedOptions
from gpu_worker.engine.warmup import measure


class Clock:
    """Each look costs a millisecond, so that waiting ends."""

    def __init__(self):
        self.time_s = 0.0

    def now_s(self):
        self.time_s += 0.001
        return self.time_s

    def sleep(self, seconds):
        self.time_s += seconds


class Recording(SimulatedEngine):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.prompts = []

    def submit(self, request_id, request, **how):
        self.prompts.append(request.input_ids)
        super().submit(request_id, request, **how)

    def step(self, timeout_s):
        return super().step(0.0)


def measured(budget_s, **options):
    clock = Clock()
    engine = Recording(SimulatedOptions(tokens_per_s=10, prefill_tokens_per_s=1000, **options), clock=clock)
    speeds = measure(engine, vocabulary=50_000, step_tokens=256, budget_s=budget_s, now_s=clock.now_s)
    assert engine.load.running == engine.load.waiting == 0
    return speeds, engine, clock.time_s


def test_speeds_are_those_of_the_engine():
    speeds, engine, _ = measured(60, slots=16)
    assert speeds.rows == 16
    assert speeds.decode_alone == pytest.approx(10, rel=0.1)
    assert speeds.decode == pytest.approx(160, rel=0.1)
    assert speeds.prefill == pytest.approx(1000, rel=0.1)
    assert len(set(engine.prompts)) == len(engine.prompts)
    assert [len(prompt) for prompt in engine.prompts[-16:]] == [16] * 16  # a full step


def test_the_time_is_kept():
    speeds, _, took_s = measured(8, slots=1024)
    assert took_s < 9
    assert 1 < speeds.rows < 1024


def test_memory_that_runs_out_leaves_a_safe_number_of_slots():
    speeds, engine, _ = measured(60, slots=64, memory_tokens=150)
    assert engine.capacity.slots < 64
    assert speeds.rows <= 64


def test_a_short_context_is_not_exceeded():
    _, engine, _ = measured(20, context_tokens=40)
    assert max(len(prompt) for prompt in engine.prompts) <= 32
    assert msgspec.structs.asdict(engine.capacity)["context_tokens"] == 40
