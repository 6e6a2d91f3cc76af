"""What a job can be told beside its prompts: its priority, deadline, user and weight, each in its range."""

from typing import Any

from broker.errors import InvalidRequestError
from broker.values import is_text, shown

PRIORITIES = {"high": 10, "normal": 0, "low": -10}
PRIORITY_LIMIT = 100  # above 900 a job's place in the queue would lose the milliseconds of its age
DEADLINE_LIMIT_S = 10**9
WEIGHT_LIMIT = 1000.0  # and its inverse
USER_LIMIT = 200  # characters


def priority_number(priority: Any) -> int:
    """A priority by name or number, as a number.

    Raises:
        InvalidRequestError: it is neither.
    """
    number = PRIORITIES.get(priority) if isinstance(priority, str) else priority
    if type(number) is not int or abs(number) > PRIORITY_LIMIT:
        raise InvalidRequestError(
            f"priority must be {', '.join(PRIORITIES)} or a whole number from {-PRIORITY_LIMIT} to {PRIORITY_LIMIT}, "
            f"not {shown(priority)}"
        )
    return number


def refuse_wrong_options(model: Any, deadline: Any, user: Any, weight: Any) -> None:
    """Refuse what does not fit.

    What the ledger could not give back as it was must not get in: every driver would stumble over it.

    Raises:
        InvalidRequestError: an option is not what it should be.
    """
    if not is_text(model):
        raise InvalidRequestError(f"model must be a name, not {shown(model)}")
    if not is_text(user) or len(user) > USER_LIMIT:
        raise InvalidRequestError(f"user must be a name of at most {USER_LIMIT} characters, not {shown(user)}")
    # The range checks refuse NaN too.
    if type(weight) not in (int, float) or not 1 / WEIGHT_LIMIT <= weight <= WEIGHT_LIMIT:
        raise InvalidRequestError(f"weight must be from {1 / WEIGHT_LIMIT:g} to {WEIGHT_LIMIT:g}, not {shown(weight)}")
    if deadline is not None and (type(deadline) not in (int, float) or not 0 < deadline <= DEADLINE_LIMIT_S):
        raise InvalidRequestError(
            f"deadline must be above 0 and at most {DEADLINE_LIMIT_S} seconds, not {shown(deadline)}"
        )
