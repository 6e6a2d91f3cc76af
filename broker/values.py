"""What a value is that a caller gave: text, a whole number, a number in its range; and how an error quotes it."""

from numbers import Integral, Real
from typing import Any

from broker.errors import InvalidRequestError


def is_text(value: Any) -> bool:
    """Whether a value is text that UTF-8 can hold."""
    if not isinstance(value, str):
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return False
    return True


def shown(value: Any) -> str:
    """A value as an error message quotes it: its beginning."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def require_flag(name: str, value: Any) -> None:
    """Let only True and False pass.

    Raises:
        InvalidRequestError: it is not; the message names it.
    """
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{name} must be true or false, not {shown(value)}")


def is_whole_number(value: Any) -> bool:
    """Whether a value is a whole number, numpy's among them; True and False are none."""
    return not isinstance(value, bool) and isinstance(value, Integral)


def require_whole_number(name: str, value: Any, low: int, high: int) -> None:
    """Let only a whole number from `low` to `high` pass.

    Raises:
        InvalidRequestError: it is not; the message names it.
    """
    if (type(value) is not int and not is_whole_number(value)) or not low <= value <= high:
        raise InvalidRequestError(f"{name} must be a whole number from {low} to {high}, not {value!r}")


def require_number(name: str, value: Any, low: float, high: float, *, above: bool = False) -> None:
    """Let only a number from `low` to `high` pass, or with `above` none that is `low`.

    Raises:
        InvalidRequestError: it is not; the message names it.
    """
    # A range check refuses NaN and infinity too.
    if not _is_number(value) or not low <= value <= high:
        raise InvalidRequestError(f"{name} must be a number from {low:g} to {high:g}, not {value!r}")
    if above and value <= low:
        raise InvalidRequestError(f"{name} must be above {low:g} and at most {high:g}, not {value!r}")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) or (not isinstance(value, bool) and isinstance(value, Real))
