"""A request in an engine that has all its tokens at hand: its prompt, its tokens so far, and what comes of them."""

from collections.abc import Iterable
from dataclasses import InitVar, dataclass, field

from broker.messages import Request
from gpu_worker.engine.base import Completion
from gpu_worker.engine.completions import Ending, completion_of, settled_text
from gpu_worker.engine.settled import SettledText
from gpu_worker.engine.text import Decode


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """One request in hand; `ends` are the model's own end tokens."""

    request_id: str
    request: Request
    prompt_ids: tuple[int, ...]
    tokens: list[int]
    ends: InitVar[Iterable[int]]
    decode: Decode
    begun: bool = False
    ending: Ending = field(init=False)
    _settled: SettledText | None = field(init=False)

    def __post_init__(self, ends: Iterable[int]) -> None:
        """Find out what ends it."""
        self.ending = Ending(self.request.params, ends, self.decode)
        self._settled = settled_text(self.request, self.prompt_ids, self.ending, self.decode)

    @property
    def over(self) -> bool:
        """Whether its tokens end it."""
        return self.ending.reached(self.tokens)

    @property
    def now_tokens(self) -> int:
        """What it occupies, prompt and answer together."""
        return len(self.prompt_ids) + len(self.tokens)

    @property
    def most_tokens(self) -> int:
        """What it may come to occupy."""
        return len(self.prompt_ids) + self.request.params.max_tokens

    def settled(self) -> str:
        """The text so far of one that streams; see `Engine.text`."""
        return self._settled.push(self.tokens) if self._settled is not None else ""

    def completion(self) -> Completion:
        """What it has so far, as an end."""
        return completion_of(
            self.request_id,
            self.request,
            prompt_ids=self.prompt_ids,
            tokens=tuple(self.tokens),
            ending=self.ending,
            decode=self.decode,
            settled=self._settled,
        )
