"""A request that a server works on: its text as it comes, and the completion made of it."""

from dataclasses import dataclass, replace

from broker.messages import FinishReason, Request, Usage
from gpu_worker.engine.base import Completion
from gpu_worker.engine.openai_events import Event
from gpu_worker.engine.openai_wire import Call

_INCOMPLETE = "\ufffd"  # what some servers send for the beginning of a character


@dataclass(slots=True, kw_only=True, eq=False)
class HeldCall:
    """One request in hand. Where `cuts`, stop strings are cut from the text here, as the server leaves them in."""

    request_id: str
    request: Request
    call: Call
    prompt_ids: tuple[int, ...]  # empty where nobody here can know them
    cuts: bool = False
    prefix: str = ""  # the prompt, where it is wanted in front of the text
    begun: bool = False
    text: str = ""
    tokens: int = 0
    usage: Usage | None = None
    reason: FinishReason = FinishReason.LENGTH
    stopped: bool = False
    shown: str = ""  # of the text, what others have seen

    @property
    def now_tokens(self) -> int:
        """What it occupies, as far as that is known."""
        return len(self.prompt_ids) + self.tokens

    @property
    def most_tokens(self) -> int:
        """What it may occupy, as far as the prompt's length is known."""
        return len(self.prompt_ids) + self.request.params.max_tokens

    def fresh(self) -> "HeldCall":
        """The same request with nothing done; late events of the old one do not reach it."""
        return replace(self, begun=False, text="", tokens=0, usage=None, reason=FinishReason.LENGTH, stopped=False)

    def start_again(self) -> None:
        """Forget the text: a server cannot go on where another run was broken off."""
        self.text, self.tokens, self.usage, self.stopped = "", 0, None, False

    def take(self, event: Event) -> int:
        """Read an event; returns by how many tokens the text grew, as far as can be told."""
        before = self.tokens
        if event.text and not self.stopped:
            self.text += event.text
            self._cut()
        self.tokens += bool(event.text)
        if event.usage is not None:
            self.usage = event.usage
            self.tokens = max(self.tokens, event.usage.completion_tokens)
        if event.finish_reason is not None:
            self.reason = event.finish_reason
        return self.tokens - before

    def settled(self) -> str:
        """The text so far of one that streams, as far as another run would give it again, too.

        A server has to begin again where a run was broken off. So of a text that chance decides nothing is shown
        before its end.
        """
        params = self.request.params
        if not self.request.stream or (params.temperature > 0 and params.seed is None):
            return ""
        held_back = 0 if self.stopped else _open_stop(self.text, params.stop)
        text = self.prefix + self.text[: len(self.text) - held_back].rstrip(_INCOMPLETE)
        if text.startswith(self.shown):  # else a broken stream was begun again, and is not yet as far
            self.shown = text
        return self.shown

    def completion(self) -> Completion:
        """What there is of it. Without the server's count, each event with text counts as a token."""
        counted = self.usage or Usage(prompt_tokens=len(self.prompt_ids), completion_tokens=self.tokens)
        return Completion(
            request_id=self.request_id,
            text=self.prefix + (self.text if self.stopped else self.text.rstrip(_INCOMPLETE)),
            finish_reason=FinishReason.STOP if self.stopped else self.reason,
            usage=counted,
            input_ids=self.prompt_ids if self.request.return_input_ids else (),
        )

    def _cut(self) -> None:
        params = self.request.params
        place = _first_stop(self.text, params.stop) if self.cuts else None
        if place is not None:
            self.text = self.text[: place[1] if params.include_stop_str_in_output else place[0]]
            self.stopped = True


def _first_stop(text: str, stop: tuple[str, ...]) -> tuple[int, int] | None:
    """Begin and end of the stop string that is complete first: so it does not matter in which pieces text comes."""
    found = ((text.find(item), len(item)) for item in stop)
    places = [(at + length, at) for at, length in found if at >= 0]
    if not places:
        return None
    end, begin = min(places)
    return begin, end


def _open_stop(text: str, stop: tuple[str, ...]) -> int:
    """How much of the text's end may be the beginning of a stop string."""
    lengths = (size for item in stop for size in range(1, len(item)) if text.endswith(item[:size]))
    return max(lengths, default=0)
