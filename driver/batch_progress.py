"""How far a run of a batch file is."""

import msgspec


class BatchProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of this run, and what they took."""

    skipped: int = 0  # answered by an earlier run
    done: int = 0
    failed: int = 0
    completion_tokens: int = 0  # generated for this run
    obstacle: str | None = None
    saved: int = 0  # answered with what was generated for an identical request

    def plus(
        self, *, skipped: int = 0, done: int = 0, failed: int = 0, completion_tokens: int = 0, saved: int = 0
    ) -> "BatchProgress":
        """The same with so many more."""
        return msgspec.structs.replace(
            self,
            skipped=self.skipped + skipped,
            done=self.done + done,
            failed=self.failed + failed,
            completion_tokens=self.completion_tokens + completion_tokens,
            saved=self.saved + saved,
        )
