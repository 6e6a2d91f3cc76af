"""Waits for a Stoker job with plain Celery: a job's id is a Celery task id. Start Stoker with `stoker up` first."""

from celery import Celery
from celery.result import AsyncResult

from driver import Client, SamplingParams

URL = "redis://127.0.0.1:6397/0"

with Client(URL) as client:
    job = client.submit(["Water boils at", "The Moon is"], SamplingParams(temperature=0, max_tokens=12))

result = AsyncResult(job.id, app=Celery(backend=URL))
print(result.state)
for output in result.get(timeout=60):
    print(output["index"], repr(output["text"]), output["finish_reason"])
print(result.state)
