"""2,000 short requests through one transformers engine leave nothing behind.

The model is a small random Llama, so that this takes seconds; `scripts/bench soak` does the same with the real one.
"""

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from gpu_worker.engine.fan_out import FanOut
from gpu_worker.engine.transformers import TransformersEngine
from tests.support.soak import SETTLED, footprint, soak

VOCABULARY = 256
COUNT = 2_000


@pytest.fixture
def model():
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def tokenizer():
    words = {f"w{token}": token for token in range(VOCABULARY)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")))


def make(model, tokenizer):
    engine = FanOut(TransformersEngine(model, tokenizer))
    engine.warm_up()
    return engine


@pytest.mark.timeout(240)
def test_many_requests_leave_nothing_behind(model, tokenizer):
    # torch makes its threads and keeps its buffers at first use, for the life of the process.
    first = make(model, tokenizer)
    soak(first, SETTLED, prompt_tokens=8, new_tokens=6, vocabulary=VOCABULARY)
    first.close()
    before = footprint()
    engine = make(model, tokenizer)
    soaked = soak(engine, COUNT, prompt_tokens=8, new_tokens=6, vocabulary=VOCABULARY)
    assert soaked.rss_growth <= 0.05
    # Less than one object a request: what grew are caches, such as that of the pieces of the vocabulary.
    assert soaked.end.objects - soaked.settled.objects < COUNT - SETTLED
    assert soaked.end.handles <= soaked.settled.handles
    engine.close()
    del engine
    after = footprint()
    assert after.threads <= before.threads
    assert after.handles <= before.handles
    assert after.objects - before.objects < COUNT
