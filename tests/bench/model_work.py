"""Greedy requests of mixed lengths for a real model, the same for all who are measured, and what came of them."""

import random
from collections.abc import Sequence
from pathlib import Path

import msgspec

TEXT = """
the river bends near old stone mills where children learn to count birds and farmers sell bread before winter
comes again with quiet snow over every roof in town while ships wait for morning light and nobody can say why"""
WORDS = TEXT.split()


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One request: a text, and how many tokens are wanted for it, whatever the model would have ended with."""

    prompt: str
    max_tokens: int


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a request."""

    tokens: tuple[int, ...]
    text: str


def make_work(requests: int, prompt_words: int, new_tokens: int, seed: int) -> list[Prompt]:
    """Requests that all differ, evenly mixed up to these lengths; the same seed gives the same ones."""
    draw = random.Random(seed)
    return [_prompt(draw, place, prompt_words, new_tokens) for place in range(requests)]


def _prompt(draw: random.Random, place: int, prompt_words: int, new_tokens: int) -> Prompt:
    words = draw.choices(WORDS, k=draw.randint(1, prompt_words))
    return Prompt(prompt=f"{place} {' '.join(words)}", max_tokens=draw.randint(1, new_tokens))


def wrong_lengths(work: Sequence[Prompt], outputs: Sequence[Generated]) -> str:
    """What is missing of the tokens that were wanted; empty when nothing is."""
    if len(outputs) != len(work):
        return f"{len(outputs)} outputs for {len(work)} requests"
    wrong = [place for place, item in enumerate(work) if len(outputs[place].tokens) != item.max_tokens]
    return f"requests {wrong} have not as many tokens as they should" if wrong else ""


def same_tokens(outputs: Sequence[Generated], reference: Sequence[Generated]) -> int:
    """For how many requests the tokens are those of the reference, which may have more requests behind them."""
    return sum(mine.tokens == other.tokens for mine, other in zip(outputs, reference, strict=False))


def write_work(path: Path, work: Sequence[Prompt]) -> None:
    """For a contender's process to read."""
    path.write_bytes(msgspec.json.encode(work))


def read_outputs(path: Path) -> list[Generated]:
    """As a contender's process has written them."""
    return msgspec.json.decode(path.read_bytes(), type=list[Generated])
