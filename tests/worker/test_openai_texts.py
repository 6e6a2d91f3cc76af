"""Over `transformers serve` a greedy text is the one that the transformers engine gives, for the same model."""

import pytest

from broker.chat import ChatMessage
from broker.messages import Request, SamplingParams
from gpu_worker.engine.catalog import create_engine
from gpu_worker.settings import WorkerSettings
from tests.support.waiting import wait_until

pytestmark = pytest.mark.model
GREEDY = {"max_tokens": 12, "temperature": 0.0}
ASKED = [
    Request(params=SamplingParams(**GREEDY), prompt="The capital of France is"),
    Request(params=SamplingParams(**GREEDY), prompt="1, 2, 3, 5, 8, 13,"),
    Request(params=SamplingParams(**GREEDY), prompt="emoji 🙂🙃 and 漢字:"),
    Request(params=SamplingParams(**GREEDY), messages=(ChatMessage(role="user", content="Name three colours."),)),
    Request(params=SamplingParams(**GREEDY | {"repetition_penalty": 1.3}), prompt="A rose is a rose is a"),
    Request(params=SamplingParams(**GREEDY | {"logit_bias": {260: 5.0}}), prompt="The river"),
    Request(params=SamplingParams(temperature=1.0, top_k=1, max_tokens=6), prompt="Once upon a time"),
]


def texts(settings):
    engine = create_engine(settings)
    done = {}
    for index, request in enumerate(ASKED):
        engine.submit(str(index), request)
    wait_until(lambda: done.update({c.request_id: c for c in engine.step(1.0)}) or len(done) == len(ASKED), 60)
    engine.close()
    return [(done[str(i)].text, done[str(i)].finish_reason, done[str(i)].usage) for i in range(len(ASKED))]


def test_greedy_texts_are_those_of_the_transformers_engine(transformers_server, small_folder):
    model = str(small_folder)
    expected = texts(WorkerSettings(engine="transformers", model=model, device="cpu"))  # while the server starts
    served = texts(WorkerSettings(engine="openai", openai_url=transformers_server, model=model))
    assert served == expected
    assert all(text for text, _, _ in served)
