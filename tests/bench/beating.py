"""Many workers' heartbeats from one process: real sessions, and real beats, without the workers.

`python -m tests.bench.beating COUNT` opens COUNT sessions on STOKER_BROKER_URL, says "beating", and beats for each once
a `heartbeat_interval`, evenly spread, until its standard input is closed; then it says how late the latest beat was.
With each beat goes what a worker's supervisor asks once a second: whether its session is the latest, and lives.
"""

import json
import sys
import threading
import time
import uuid

import msgspec

from broker.records import Cause, Heartbeat
from broker.settings import load_broker_settings
from broker.states import WorkerState
from broker.store import Store

SLOTS = 256
CONTEXT_TOKENS = 8_192
OPENING = {"host": "bench", "pid": 1, "device": "cuda:0"}
CONNECTION = f"{uuid.uuid4().hex}{'0' * 8}:12345"  # as long as one, of no server
# As long as that of a worker with one GPU.
TELEMETRY = json.dumps(
    {
        "device": "NVIDIA H100 80GB HBM3",
        "utilisation": 0.93,
        "memory_used_mib": 71_234.0,
        "memory_total_mib": 81_559.0,
        "temperature_c": 61,
        "power_w": 604.2,
        "tokens_per_s": 2_480.4,
        "kv_used": 0.62,
    }
)


def beat_for(count: int) -> float:
    """Beat for so many workers until standard input ends; the most seconds that a beat came late."""
    settings = load_broker_settings()
    store = Store(settings)
    instance = uuid.uuid4().hex
    workers = [(uuid.uuid4().hex, f"bench-{number}@bench") for number in range(count)]
    for session_id, name in workers:
        store.sessions.open(session_id, name, instance, OPENING)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    print("beating", flush=True)
    start_s, beats, latest_s = time.monotonic(), 0, 0.0
    while not ended.is_set():
        session_id, name = workers[beats % count]
        store.sessions.beat(session_id, name, _heartbeat(beats // count))
        assert store.sessions.current(name, instance=instance) == session_id
        assert store.sessions.watch(session_id, instance) == WorkerState.READY
        beats += 1
        late_s = time.monotonic() - (start_s + beats * settings.heartbeat_interval / count)
        latest_s = max(latest_s, late_s)
        if late_s < 0:
            time.sleep(-late_s)
    for session_id, _ in workers:
        store.sessions.expire(session_id, Cause.STOPPED, "stopped")
    store.close()
    return latest_s


def _heartbeat(number: int) -> Heartbeat:
    """What changes from beat to beat, and what does not."""
    return Heartbeat(
        state=WorkerState.READY,
        model="bench",
        connection=CONNECTION,
        telemetry=TELEMETRY,
        max_batches=64,
        slots=SLOTS,
        kv_tokens=SLOTS * CONTEXT_TOKENS,
        context_tokens=CONTEXT_TOKENS,
        prefill_tokens_per_s=20_000.0,
        decode_tokens_per_s=2_500.0,
        steps=number * 50,
        generated_tokens=number * 2_500,
    )


if __name__ == "__main__":
    print(msgspec.json.encode({"latest_s": beat_for(int(sys.argv[1]))}).decode(), flush=True)
