"""What a worker says of itself at every beat. Pure."""

import msgspec

from broker.records import Heartbeat
from gpu_worker.seat import View
from gpu_worker.settings import WorkerSettings
from gpu_worker.standing import Standing


def report(
    settings: WorkerSettings, standing: Standing, view: View | None, telemetry: str, given_back: int
) -> Heartbeat:
    """The heartbeat of now; before the first engine (`view` is None) without capacity and load."""
    beat = Heartbeat(state=standing.state, reason=standing.reason, model=settings.served_model, telemetry=telemetry)
    if view is None:
        return beat
    capacity, load = view.capacity, view.load
    return msgspec.structs.replace(
        beat,
        max_batches=settings.concurrency,
        slots=capacity.slots,
        kv_tokens=capacity.kv_tokens,
        context_tokens=capacity.context_tokens,
        prefill_tokens_per_s=capacity.prefill_tokens_per_s,
        decode_tokens_per_s=capacity.decode_tokens_per_s,
        running=load.running,
        waiting=load.waiting,
        steps=load.steps,
        generated_tokens=load.generated_tokens,
        given_back=given_back,
    )
