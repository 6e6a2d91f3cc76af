"""The real model in a peer's process: loaded once, then static batches with `generate`, or continuous batching."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching import ContinuousBatchingManager

NO_END = -1  # every request wants exactly `max_tokens`


class Model:
    """A model in float32 on the CPU, and its tokenizer."""

    def __init__(self, folder: str) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.tokenizer.pad_token = self.tokenizer.pad_token or self.tokenizer.eos_token

    def read(self, prompt: str) -> list[int]:
        """A prompt's tokens."""
        return self.tokenizer(prompt)["input_ids"]

    def output(self, tokens: list[int]) -> dict[str, Any]:
        """Tokens, and their text."""
        return {"tokens": tokens, "text": self.tokenizer.decode(tokens, skip_special_tokens=True)}

    def static(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """One batch, padded on the left, which runs until its longest text is there."""
        inputs = self.tokenizer([item["prompt"] for item in items], return_tensors="pt", padding=True)
        config = GenerationConfig(
            do_sample=False,
            max_new_tokens=max(item["max_tokens"] for item in items),
            eos_token_id=NO_END,
            pad_token_id=self.tokenizer.pad_token_id,
        )
        with torch.inference_mode():
            rows = self.model.generate(**inputs, generation_config=config)
        new = rows[:, inputs["input_ids"].shape[1] :].tolist()
        return [self.output(row[: item["max_tokens"]]) for row, item in zip(new, items, strict=True)]

    def continuous(self, sizes: dict[str, int]) -> ContinuousBatchingManager:
        """The library's own loop, started; sizes as those of Stoker's engine, so that both run the same steps."""
        manager = ContinuousBatchingManager(
            model=self.model,
            generation_config=GenerationConfig(do_sample=False, eos_token_id=NO_END),
            continuous_batching_config=ContinuousBatchingConfig(**sizes),
        )
        with torch.inference_mode():
            manager.warmup()
            manager.start()
        return manager
