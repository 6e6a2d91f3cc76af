"""What takes part in a comparison: a name, and how it is measured once."""

from collections.abc import Callable, Mapping

import msgspec


class Contender(msgspec.Struct, frozen=True, kw_only=True):
    """`measure` starts what it needs, measures once, checks every result, and ends all of it again.

    It gives figures by metric (`requests_per_s`, `p50_ms`, …), and raises when a result is wrong or missing, or when
    it takes too long; the message is shown in the table.
    """

    name: str
    measure: Callable[[], Mapping[str, float]]
