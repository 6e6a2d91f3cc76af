"""Texts that end by themselves, as only the whole packaged model's do."""

import pytest

from broker.chat import ChatMessage
from broker.messages import FinishReason, Request, SamplingParams
from gpu_worker.engine.transformers import TransformersEngine

pytestmark = pytest.mark.model


def asked(**params):
    sampling = SamplingParams(**{"max_tokens": 20, "temperature": 0.0} | params)
    return Request(params=sampling, messages=(ChatMessage(role="user", content="What is the capital of France?"),))


@pytest.fixture(scope="module")
def outputs(loaded_model):
    """Of a request that ends by itself, of one that may not, and of one that may not so soon."""
    engine = TransformersEngine(loaded_model.model, loaded_model.tokenizer)
    for name, request in {"ended": asked(), "ignored": asked(ignore_eos=True), "later": asked(min_tokens=12)}.items():
        engine.submit(name, request)
    done = {}
    while len(done) < 3:
        done |= {completion.request_id: completion for completion in engine.step(1.0)}
    engine.close()
    return done


def test_the_end_token_is_counted_and_not_shown(outputs, loaded_model):
    ended = outputs["ended"]
    assert ended.finish_reason is FinishReason.STOP
    assert ended.token_ids[-1] == loaded_model.tokenizer.eos_token_id
    assert ended.text == "The capital of France is Paris."
    assert ended.usage.completion_tokens == len(ended.token_ids)


def test_end_tokens_can_be_ignored_or_put_off(outputs, loaded_model):
    ended, ignored, later = (outputs[name] for name in ("ended", "ignored", "later"))
    at = len(ended.token_ids)
    assert ignored.token_ids[:at] == ended.token_ids
    assert (len(ignored.token_ids), ignored.finish_reason) == (20, FinishReason.LENGTH)
    assert loaded_model.tokenizer.eos_token_id not in later.token_ids[:12]
    assert len(later.token_ids) > 12 > at - 1
