"""How long messages take, and when workers beat."""

ROUND_S = 0.1  # between two rounds of scheduling
DISPATCH_S = 0.02  # from the decision until the request is in the engine
GIVE_BACK_S = 0.01  # from the beat that brings the order until the request is pending again
BEAT_S = 1.0
RESTART_S = 30.0
DETECT_S = 1.0
DRAIN_S = 30.0  # then a worker that drains gives back what it has


class Timing:
    """As measured, and the same every time."""

    def beat_s(self) -> float:
        """Until a worker's next beat."""
        return BEAT_S

    def answer_arrives(self) -> bool:
        """Whether a worker hears what its beat is answered."""
        return True

    def dispatch_s(self) -> float:
        """From the decision until a request is in the engine."""
        return DISPATCH_S

    def give_back_s(self) -> float:
        """From an order's arrival until a request is pending again."""
        return GIVE_BACK_S
