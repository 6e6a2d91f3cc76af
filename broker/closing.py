"""Stores a complete job's result where plain Celery looks for it, and closes the job.

The worker that commits the last output does so at once; if it dies in between, the leading driver does it again.
"""

from typing import Any

import msgspec
from celery import Celery

from broker.errors import JobNotFoundError
from broker.ledger import ClientReturnedError
from broker.messages import Output
from broker.records import JobRecord
from broker.results import OutputStream
from broker.store import Store

MAX_OUTPUTS = 10_000
MAX_BYTES = 64 * 1024 * 1024


def close_job(app: Celery, store: Store, job_id: str) -> None:
    """Store the job's outputs, in request order, as its Celery result, then close it. Doing it twice does no harm.

    A job of more than 10,000 outputs or 64 MiB of text, or one whose outputs were trimmed, stores a summary; one that
    its client left incomplete, an IncompleteJobError.
    """
    try:
        _store_and_close(app, store, job_id)
    except ClientReturnedError:
        _store_and_close(app, store, job_id)  # nobody can lose it again: the job is sealed


def _store_and_close(app: Celery, store: Store, job_id: str) -> None:
    ttl_s = store.settings.result_ttl_s
    try:
        record = store.queries.job(job_id)
    except JobNotFoundError:
        store.ledger.close(job_id, ttl_s)
        return
    if record.client_lost:
        app.backend.store_result(job_id, record.incomplete(), "FAILURE")
    else:  # Celery keeps this one whoever stores a failure after it
        app.backend.store_result(job_id, _result(record, store.outputs(job_id)), "SUCCESS")
    store.ledger.close(job_id, ttl_s, client_lost=record.client_lost)


def _result(record: JobRecord, stream: OutputStream) -> Any:
    if record.submitted > MAX_OUTPUTS:
        return _summary(record)
    outputs: list[Output] = []
    size = 0
    for output in stream.drain():
        outputs.append(output)
        size += len(output.text)
        if size > MAX_BYTES:
            return _summary(record)
        if len(outputs) == record.submitted:
            break  # nothing more can come
    if len(outputs) < record.submitted:
        return _summary(record)
    return [msgspec.to_builtins(output) for output in sorted(outputs, key=lambda output: output.index)]


def _summary(record: JobRecord) -> dict[str, Any]:
    return {
        "job_id": record.id,
        "requests": record.submitted,
        "failed": record.failed,
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.completion_tokens,
        "shared": record.shared,
        "cached": record.cached,
        "saved_prompt_tokens": record.saved_prompt_tokens,
        "saved_completion_tokens": record.saved_completion_tokens,
    }
