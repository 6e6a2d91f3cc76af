"""How full the library's KV cache is, and how many prompt tokens it saved: counted where the library decides.

One meter outlives the loops of an engine, so that what it counts only grows.
"""

from collections.abc import Callable
from typing import Any


class CacheMeter:
    """Watches one loop at a time. Any thread may read."""

    def __init__(self) -> None:
        self.prompt_tokens = 0  # to be read; again when a request was pushed out of the cache
        self.cached_prompt_tokens = 0  # of them, those whose keys and values were there
        self._share: Callable[[], float] | None = None

    def watch(self, processor: Any) -> None:
        """Count what a loop's batch processor does from now on."""
        cache = processor.cache
        self.watch_share(lambda: _held_share(cache))
        self._count_prompts(processor.scheduler)
        self._count_matches(processor.cache)

    def watch_share(self, share: Callable[[], float]) -> None:
        """Let a loop of another kind tell how full its cache is; it counts its prompts itself."""
        self._share = share

    def forget(self) -> None:
        """Let go of the loop, so that its cache can be freed."""
        self._share = None

    @property
    def used_share(self) -> float:
        """The part of the cache that requests hold, from 0 to 1; what is only kept to be shared counts as free."""
        share = self._share
        return share() if share is not None else 0.0

    def _count_prompts(self, scheduler: Any) -> None:
        add = scheduler.add_waiting_request

        def counted_add(state: Any) -> None:
            self.prompt_tokens += len(state.initial_tokens)
            add(state)

        scheduler.add_waiting_request = counted_add

    def _count_matches(self, cache: Any) -> None:
        search = cache.search_prefix_match

        def counted_search(request_id: str, prompt_ids: list[int]) -> int:
            matched = search(request_id, prompt_ids)
            self.cached_prompt_tokens += matched
            return matched

        cache.search_prefix_match = counted_search


def _held_share(cache: Any) -> float:
    free_bytes = cache.compute_free_capacity(relative=False)
    for allocator in cache.cache_allocators.values():
        free_bytes += len(allocator.ledger.cached_blocks) * allocator.bytes_per_block
    return max(0.0, 1 - free_bytes / (cache.num_sectors * cache.bytes_per_sector))
