"""When a request is over, and the completion made of it: the same rules for every engine."""

from collections.abc import Iterable, Sequence

from broker.messages import FinishReason, OutputError, Request, Usage
from broker.parameters import SamplingParams
from gpu_worker.engine.base import Completion
from gpu_worker.engine.settled import SettledText
from gpu_worker.engine.text import Decode, StopSearch, whole_text


class Ending:
    """What ends one request: `max_tokens`, an end token, a stop string. `ends` are the model's own end tokens."""

    def __init__(self, params: SamplingParams, ends: Iterable[int], decode: Decode) -> None:
        own = () if params.ignore_eos else tuple(ends)
        self.tokens: frozenset[int] = frozenset((*own, *params.stop_token_ids))
        self._params = params
        self._decode = decode
        self._stop = StopSearch(params.stop, decode, min_tokens=params.min_tokens) if params.stop else None

    @property
    def needs_text(self) -> bool:
        """Whether every token must be looked at as it comes."""
        return self._stop is not None

    def reached(self, tokens: Sequence[int]) -> bool:
        """Whether generation ends with these tokens, which are all that the request has so far."""
        if self._stop is not None and self._stop.push(tokens):
            return True
        return len(tokens) >= self._params.max_tokens or self._by_token(tokens)

    def cut(self, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], str, FinishReason]:
        """The tokens that count, their text, and why there are no more.

        The tokens include the end token, or the one that completed a stop string; the text has neither end token nor
        stop string, unless they are wanted.
        """
        with_stop = self._params.include_stop_str_in_output
        if self._stop is not None and self._stop.push(tokens):
            return tuple(self._stop.kept), self._stop.text(with_stop=with_stop), FinishReason.STOP
        tokens = tokens[: self._params.max_tokens]
        if not self._by_token(tokens):
            return tokens, whole_text(self._decode, tokens), FinishReason.LENGTH
        shown = tokens if with_stop else tokens[:-1]
        return tokens, whole_text(self._decode, shown), FinishReason.STOP

    def _by_token(self, tokens: Sequence[int]) -> bool:
        return len(tokens) > self._params.min_tokens and tokens[-1] in self.tokens


def completion_of(
    request_id: str,
    request: Request,
    *,
    prompt_ids: tuple[int, ...],
    tokens: tuple[int, ...],
    ending: Ending,
    decode: Decode,
    settled: SettledText | None = None,
) -> Completion:
    """The completion of a request that is over; `settled` is the text of one that streams."""
    counted, text, reason = ending.cut(tokens)
    text = _opening(request, prompt_ids, decode) + text
    if settled is not None:
        text = settled.final(tokens, text)
    tokens = counted
    return Completion(
        request_id=request_id,
        text=text,
        token_ids=tokens,
        finish_reason=reason,
        usage=Usage(prompt_tokens=len(prompt_ids), completion_tokens=len(tokens)),
        input_ids=prompt_ids if request.return_input_ids else (),
    )


def settled_text(request: Request, prompt_ids: tuple[int, ...], ending: Ending, decode: Decode) -> SettledText | None:
    """Where the text so far of a request that streams is kept; None for others."""
    if not request.stream:
        return None
    return SettledText(request.params, ending.tokens, decode, opening=_opening(request, prompt_ids, decode))


def failure(request_id: str, code: str, message: str) -> Completion:
    """The completion of a request that gives no text."""
    return Completion(
        request_id=request_id,
        finish_reason=FinishReason.ERROR,
        error=OutputError(code=code, message=message),
    )


def _opening(request: Request, prompt_ids: tuple[int, ...], decode: Decode) -> str:
    """The echoed prompt as it was written; decoded where it was given as tokens or only a part of it was read."""
    if not request.params.echo:
        return ""
    if request.prompt is not None and request.params.truncate_prompt_tokens is None:
        return request.prompt
    return decode(prompt_ids)
