"""A real model of a few thousand weights, random but always the same, with a tokenizer whose tokens are bytes."""

from types import SimpleNamespace

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 256


def tiny_model(**config):
    """Model and tokenizer, as `load_model` gives them."""
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "bos_token_id": None,
        "eos_token_id": None,
        "initializer_range": 0.4,  # so that texts differ
    }
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = LlamaForCausalLM(LlamaConfig(**settings | config)).eval()
    return SimpleNamespace(model=model, tokenizer=_tokenizer())


def save_tiny_model(folder, **config):
    """The folder, with model and tokenizer saved into it."""
    made = tiny_model(**config)
    made.model.save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    return folder


def _tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)
