"""Picks one token a row by inverse transform from one number that depends on the row's seed and the token's place.

Nothing else matters to it: company, preemption and resumption leave a seeded text as it is.
"""

from hashlib import blake2b

import torch

_DRAW_BITS = 31  # what a row of the library's int32 argument table holds
_HEAD = 1024  # the best scores, among which a cut by top_k or top_p mostly falls; a topk is 10 times a sort's speed


def draw(seed: int, position: int) -> int:
    """The 31 random bits that pick the token at `position` of a sequence, the prompt's first token being 0."""
    key = seed.to_bytes(8, "little", signed=True) + position.to_bytes(8, "little")
    return int.from_bytes(blake2b(key, digest_size=4).digest(), "little") >> (32 - _DRAW_BITS)


def pick_tokens(
    scores: torch.Tensor,
    *,
    temperature: torch.Tensor,
    top_p: torch.Tensor,
    top_k: torch.Tensor,
    draws: torch.Tensor,
    filtered: bool = True,
    eager: bool = True,
) -> torch.Tensor:
    """One token a row, shape [rows], from scores [rows, vocabulary] and one argument a row.

    The order is temperature, top_k, top_p, as in transformers and vLLM; tokens that tie with the last one kept are
    kept. `filtered` False says that no row has a top_k or a top_p. `eager` lets the work depend on the values.
    """
    # From the top score down: whatever the temperature, nothing overflows.
    scores = (scores - scores.amax(-1, keepdim=True)) / temperature.unsqueeze(-1)
    if filtered:
        find = _cutoff if eager else _sorted_cutoff
        scores = scores.masked_fill(scores < find(scores, top_p, top_k), -torch.inf)
    # In double precision, as a running sum over 10^5 small float32 terms would bias the tail.
    running = torch.softmax(scores, -1).cumsum(-1, dtype=torch.float64)
    target = (draws.to(torch.float64) + 0.5) / (1 << _DRAW_BITS) * running[:, -1]
    picked = torch.searchsorted(running, target.unsqueeze(-1), right=True).squeeze(-1)
    return picked.clamp(max=scores.size(-1) - 1)


def _cutoff(scores: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """The lowest score that each row keeps, shape [rows, 1], mostly without a sort of the whole vocabulary.

    Whether a row needs the sort depends on that row alone, so that its token does not depend on its company.
    """
    head = scores.topk(min(_HEAD, scores.size(-1)), -1).values
    by_count = (top_k > 0) & (top_k <= head.size(-1))
    kept = _top(head, torch.where(by_count, top_k, head.size(-1)))
    mass = torch.where(by_count, kept.logsumexp(-1), scores.logsumexp(-1))
    unfiltered = (top_k == 0) & (top_p >= 1)
    cutoff = _nucleus(kept, mass, top_p).masked_fill(unfiltered.unsqueeze(-1), -torch.inf)
    covered = (top_k == 0) & ((kept.logsumexp(-1) - mass).exp() > top_p)
    open_rows = (~(by_count | covered | unfiltered)).nonzero().squeeze(-1)
    if open_rows.numel():
        cutoff[open_rows] = _sorted_cutoff(scores[open_rows], top_p[open_rows], top_k[open_rows])
    return cutoff


def _sorted_cutoff(scores: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    ordered = scores.sort(-1, descending=True).values
    vocabulary = scores.size(-1)
    kept = _top(ordered, torch.where(top_k > 0, top_k, vocabulary).clamp(max=vocabulary))
    return _nucleus(kept, kept.logsumexp(-1), top_p)


def _top(ordered: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    last = ordered.gather(-1, count.long().unsqueeze(-1) - 1)
    return ordered.masked_fill(ordered < last, -torch.inf)


def _nucleus(ordered: torch.Tensor, mass: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The lowest of the ordered scores that are needed to reach `top_p` of the mass, whose logarithm is given."""
    probabilities = (ordered - mass.unsqueeze(-1)).exp()
    before = probabilities.cumsum(-1, dtype=torch.float64) - probabilities
    # The first token is always kept; a top_p of 1 keeps every one, whatever the sum rounds to.
    keep = (before < top_p.unsqueeze(-1)) | (top_p >= 1).unsqueeze(-1)
    return ordered.masked_fill(~keep | ordered.isneginf(), torch.inf).amin(-1, keepdim=True)
