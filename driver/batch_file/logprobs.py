"""The log probabilities of an answer in OpenAI's two shapes: a chat's and a completion's."""

import itertools

import msgspec

from broker.messages import Alternative, TokenLogprob

_PART_OF_A_CHARACTER = "\ufffd"


class _ChatAlternative(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: tuple[int, ...] | None  # None: a part of a character


class _ChatToken(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    logprob: float
    bytes: tuple[int, ...] | None
    top_logprobs: tuple[_ChatAlternative, ...]


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Of a chat's answer."""

    content: tuple[_ChatToken, ...]
    refusal: None = None


class TextLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Of a completion's text; `text_offset` is where each token begins in the tokens' texts."""

    tokens: tuple[str, ...]
    token_logprobs: tuple[float, ...]
    top_logprobs: tuple[dict[str, float], ...]
    text_offset: tuple[int, ...]


def chat_logprobs(tokens: tuple[TokenLogprob, ...] | None) -> ChatLogprobs | None:
    """As a chat completion has them; None where none were asked for."""
    if tokens is None:
        return None
    return ChatLogprobs(
        content=tuple(
            _ChatToken(
                token=token.text,
                logprob=token.logprob,
                bytes=_bytes(token.text),
                top_logprobs=tuple(_chat_alternative(other) for other in token.alternatives),
            )
            for token in tokens
        )
    )


def text_logprobs(tokens: tuple[TokenLogprob, ...] | None) -> TextLogprobs | None:
    """As a text completion has them; None where none were asked for.

    As in OpenAI's, the chosen token is among the likeliest of its place whether it was one of them or not.
    """
    if tokens is None:
        return None
    lengths = (len(token.text) for token in tokens)
    return TextLogprobs(
        tokens=tuple(token.text for token in tokens),
        token_logprobs=tuple(token.logprob for token in tokens),
        top_logprobs=tuple(
            {other.text: other.logprob for other in token.alternatives} | {token.text: token.logprob}
            for token in tokens
        ),
        text_offset=tuple(itertools.accumulate(lengths, initial=0))[: len(tokens)],
    )


def _chat_alternative(other: Alternative) -> _ChatAlternative:
    return _ChatAlternative(token=other.text, logprob=other.logprob, bytes=_bytes(other.text))


def _bytes(text: str) -> tuple[int, ...] | None:
    return None if _PART_OF_A_CHARACTER in text else tuple(text.encode())
