"""The errors of an engine, below `broker.errors.StokerError`.

StokerError
├── InvalidRequestError
│   └── ContextLengthExceededError  prompt and max_tokens do not fit
├── NoRoomError                     what is asked for does not fit into the memory; retryable
└── EngineDeadError                 this process can no longer generate; retryable elsewhere

`ENGINE_ERROR` is the code of a request whose generation failed more than once, the last time alone; `OUT_OF_MEMORY`
that of one for which memory was too short even alone.
"""

from broker.errors import InvalidRequestError, StokerError

ENGINE_ERROR = "engine_error"
OUT_OF_MEMORY = "out_of_memory"


class ContextLengthExceededError(InvalidRequestError):
    """Prompt and `max_tokens` do not fit; the message has the numbers and what would fit."""

    code = "context_length_exceeded"


class NoRoomError(StokerError):
    """Sizes, or weights that come back, do not fit; the engine is as it was before."""

    code = "no_room"
    retryable = True


class EngineDeadError(StokerError):
    """The engine cannot be brought back within this process: end it, and its requests go elsewhere."""

    code = "engine_dead"
    retryable = True


def require_fit(prompt_tokens: int, max_tokens: int, context_tokens: int) -> None:
    """Refuse a request that would outgrow the context; `prompt_tokens` is 0 where nobody knows yet.

    Raises:
        ContextLengthExceededError: says how much fits.
    """
    if prompt_tokens >= context_tokens:
        raise ContextLengthExceededError(
            f"the prompt has {prompt_tokens} tokens, but the context holds {context_tokens} for prompt"
            " and answer together; shorten the prompt"
        )
    room = context_tokens - prompt_tokens
    if max_tokens > room:
        prompt = f"the prompt's {prompt_tokens} tokens and " if prompt_tokens else ""
        raise ContextLengthExceededError(
            f"{prompt}max_tokens {max_tokens} exceed the context of {context_tokens} tokens;"
            f" max_tokens can be at most {room}"
        )


def require_kv_tokens(kv_tokens: int, needed: int) -> None:
    """Refuse a KV cache, of 0 tokens for as many as there are, that a request in hand would never have room in.

    Raises:
        NoRoomError: says how many it may need.
    """
    if 0 < kv_tokens < needed:
        raise NoRoomError(f"kv_tokens={kv_tokens} is too few: a request in hand may need {needed}")
