"""Celery tasks over a resident model: one prompt at a time, a list at once, or what celery-batches has gathered.

The worker's child loads the model before it takes a task, as Celery's documentation has it for costly resources.
"""

import os
from typing import Any

import torch
from celery import Celery, signals
from celery_batches import Batches
from smollm import Model

BATCH = 16

app = Celery("model", broker=os.environ["PEER_URL"], backend=os.environ["PEER_URL"])
app.conf.update(
    worker_prefetch_multiplier=4 * BATCH,  # celery-batches needs at least a batch; one worker takes all here anyway
    worker_proc_alive_timeout=120.0,  # the model takes longer to load than the four seconds allowed
)
resident: list[Model] = []


@signals.worker_process_init.connect
def load(**_: Any) -> None:
    torch.set_num_threads(int(os.environ["MODEL_THREADS"]))
    resident.append(Model(os.environ["MODEL_FOLDER"]))


@app.task
def generate_one(item: dict[str, Any]) -> dict[str, Any]:
    return resident[0].static([item])[0]


@app.task
def generate_list(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return resident[0].static(items)


@app.task(base=Batches, flush_every=BATCH, flush_interval=1.0)
def generate_gathered(requests: list[Any]) -> None:
    outputs = resident[0].static([request.args[0] for request in requests])
    for request, output in zip(requests, outputs, strict=True):
        app.backend.mark_as_done(request.id, output, request=request)
