"""The verdict after every failure: each request has exactly one output, and it is the right one."""

import contextlib
from collections.abc import Mapping, Sequence

import msgspec
import pytest
from celery.result import AsyncResult

from broker.celery_app import create_app
from broker.errors import IncompleteJobError
from broker.messages import FinishReason, Output, Request, SamplingParams
from driver import Job
from gpu_worker.engine.base import Completion
from gpu_worker.engine.simulated import SimulatedEngine, SimulatedOptions

NO_ERRORS: Mapping[int, str] = {}


def requests(count: int, tokens: int, *, about: str = "request") -> list[Request]:
    """So many requests, every one with another prompt and so with another answer."""
    return [Request(params=SamplingParams(max_tokens=tokens), prompt=f"{about} number {i}") for i in range(count)]


def undisturbed(asked: Sequence[Request]) -> list[Completion]:
    """What the simulated engine answers when nothing goes wrong."""
    engine = SimulatedEngine(SimulatedOptions(slots=1024))
    for index, request in enumerate(asked):
        engine.submit(str(index), request)
    done: dict[str, Completion] = {}
    while len(done) < len(asked):
        done |= {completion.request_id: completion for completion in engine.step(1.0)}
    engine.close()
    return [done[str(index)] for index in range(len(asked))]


def assert_each_done_once(
    cluster,
    job: Job,
    asked: Sequence[Request],
    *,
    errors: Mapping[int, str] = NO_ERRORS,
    timeout: float = 60.0,
    client_lost: bool = False,
) -> list[Output]:
    """Wait for the job; `errors` are the error codes, by index, that some requests should have. Returns the outputs.

    With `client_lost`, everybody who asks is told that the job is incomplete.

    Exactly one output a request; texts as undisturbed; the job's counters and its Celery result agree.
    """
    outputs: list[Output] = []
    with pytest.raises(IncompleteJobError) if client_lost else contextlib.nullcontext():
        outputs.extend(job.as_completed(timeout))
    assert sorted(output.index for output in outputs) == list(range(len(asked))), "an output is missing, or there twice"
    in_order = sorted(outputs, key=lambda output: output.index)
    found = {o.index: o.error.code for o in in_order if o.error is not None}
    assert found == dict(errors)
    _assert_texts(in_order, asked)
    _assert_counters(cluster, job, in_order)
    _assert_celery_result(cluster, job, in_order, client_lost=client_lost)
    return in_order


def _assert_texts(outputs: Sequence[Output], asked: Sequence[Request]) -> None:
    for output, expected in zip(outputs, undisturbed(asked), strict=True):
        if output.error is not None:
            # A cancelled request keeps the text so far; one that killed its worker has none.
            assert output.finish_reason == FinishReason.ERROR
            assert expected.text.startswith(output.text)
            assert expected.token_ids[: len(output.token_ids)] == output.token_ids
        else:
            assert output.text == expected.text
            assert output.token_ids == expected.token_ids
            assert output.finish_reason == expected.finish_reason
            assert output.usage == expected.usage


def _assert_counters(cluster, job: Job, outputs: Sequence[Output]) -> None:
    record = cluster.store.queries.job(job.id)
    assert record.state == "done"
    assert (record.submitted, record.done) == (len(outputs), len(outputs))
    assert record.failed == sum(output.error is not None for output in outputs)
    assert record.prompt_tokens == sum(output.usage.prompt_tokens for output in outputs)
    assert record.completion_tokens == sum(output.usage.completion_tokens for output in outputs)


def _assert_celery_result(cluster, job: Job, outputs: Sequence[Output], *, client_lost: bool) -> None:
    app = create_app(cluster.store.settings)
    try:
        if client_lost:
            with pytest.raises(IncompleteJobError):
                AsyncResult(job.id, app=app).get(timeout=60)
            return
        result = AsyncResult(job.id, app=app).get(timeout=60)
        # Plain Celery carries JSON: the tuples of an output are lists there.
        assert result == msgspec.json.decode(msgspec.json.encode(list(outputs)))
    finally:
        app.backend.result_consumer.stop()  # Celery leaves the connection open on which it waits
        app.backend.client.connection_pool.disconnect()
        app.close()
