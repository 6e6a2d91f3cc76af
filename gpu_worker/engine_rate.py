"""How fast an engine is and how full: from what it says of itself at successive readings."""

from collections.abc import Callable

from gpu_worker.engine.base import Capacity, Load

_SHORTEST_S = 0.5  # beats can follow one another at once, and a rate over a moment says nothing


class EngineRate:
    """Remembers the last reading. `now_s` is a clock that only goes forward."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._since_s = 0.0
        self._tokens: int | None = None
        self._tokens_per_s = 0.0

    def read(self, capacity: Capacity, load: Load) -> dict[str, float]:
        """Generated tokens per second since the last reading; shares in percent, of KV cache and of prompt tokens."""
        return {
            "tokens_per_s": round(self._rate(load.generated_tokens), 1),
            "kv_used_percent": _percent(load.kv_tokens_used, capacity.kv_tokens),
            "prefix_hit_percent": _percent(load.cached_prompt_tokens, load.prompt_tokens),
        }

    def _rate(self, tokens: int) -> float:
        now_s = self._now_s()
        elapsed_s = now_s - self._since_s
        if self._tokens is not None and elapsed_s < _SHORTEST_S:
            return self._tokens_per_s
        if self._tokens is not None:
            # A loop that broke or was replaced may have begun to count anew.
            self._tokens_per_s = max(0, tokens - self._tokens) / elapsed_s
        self._since_s, self._tokens = now_s, tokens
        return self._tokens_per_s


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 1) if whole else 0.0
