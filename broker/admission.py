"""Why a submission is refused while the queue is full, and how long the room that it needs takes to come. Pure."""

import msgspec

from broker.errors import QueueFullError


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger says of a submission that it refuses: the limit, and what counts towards it.

    `scope_requests` and `scope_tokens` wait for those that the limit is for: one user, or everybody; `all_tokens`
    wait in all.
    """

    fits: int
    limit: str
    most: int
    fill: int
    wanted: int
    scope_requests: int
    scope_tokens: int
    all_tokens: int
    tokens_per_s: float

    @property
    def retry_after_s(self) -> float | None:
        """Seconds until there is room, if work goes on as it does; None when nothing moves, or nothing would help.

        Users are taken to share the speed by what they have waiting.
        """
        if self.tokens_per_s <= 0 or self.wanted > self.most or not self.scope_requests:
            return None
        excess = self.fill + self.wanted - self.most
        unit = 1.0 if self.limit.endswith("tokens") else self.scope_tokens / self.scope_requests
        share = self.scope_tokens / self.all_tokens if self.all_tokens and self.scope_tokens else 1.0
        return excess * unit / (self.tokens_per_s * share)

    def error(self, user: str) -> QueueFullError:
        """The refusal as what a client sees."""
        unit = "tokens" if self.limit.endswith("tokens") else "requests"
        whose = (f" of user {user!r}" if user else " without a user") if "user" in self.limit else ""
        message = (
            f"{self.fill} {unit}{whose} wait and at most {self.most} may ({self.limit}): no room for {self.wanted} more"
        )
        wait_s = self.retry_after_s
        if wait_s is not None:
            message += f"; try again in {wait_s:.1f} s"
        elif self.tokens_per_s <= 0:
            message += "; nothing was settled lately, so nobody knows for how long"
        return QueueFullError(
            message,
            limit=self.limit,
            most=self.most,
            fill=self.fill,
            wanted=self.wanted,
            retry_after_s=wait_s,
            fits=self.fits,
        )
