"""Contenders that stay loaded from round to round, and what each of their measurements gives."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Protocol

from tests.bench.contender import Contender
from tests.bench.cpu import cpu_s
from tests.bench.model_work import Generated, Prompt, wrong_lengths

RUN_TIMEOUT_S = 300.0


class Resident(Protocol):
    """A model that is loaded once, behind whatever brings requests to it."""

    def start(self) -> None:
        """Return when everything is loaded and warm."""
        ...

    def generate(self, work: Sequence[Prompt], timeout_s: float) -> tuple[float, list[Generated]]:
        """Seconds from the first request handed over until the last output is back, and the outputs in order."""
        ...

    @property
    def pids(self) -> list[int]:
        """All processes that work for it."""
        ...

    def close(self) -> None:
        """End everything."""
        ...


class Trial:
    """One resident in all rounds: each has other work; the outputs are kept."""

    def __init__(self, resident: Resident, make_work: Callable[[int], Sequence[Prompt]]) -> None:
        self._resident = resident
        self._make_work = make_work
        self._why_not = "it was not started"
        self._round = 0
        self.outputs: dict[int, list[Generated]] = {}

    def start(self) -> None:
        """Load and warm it; where that fails every measurement says why."""
        try:
            self._resident.start()
        except Exception as error:  # the others are measured all the same, and the table says so
            self._why_not = f"did not start: {error}"
        else:
            self._why_not = ""

    def measure(self) -> dict[str, float]:
        """Tokens per second of the next round, and per second of CPU of all its processes."""
        number, self._round = self._round, self._round + 1
        if self._why_not:
            raise RuntimeError(self._why_not)
        work, pids = self._make_work(number), self._resident.pids
        before_s = cpu_s(pids)
        seconds, outputs = self._resident.generate(work, RUN_TIMEOUT_S)
        used_s = cpu_s(pids) - before_s
        if wrong := wrong_lengths(work, outputs):
            raise RuntimeError(wrong)
        self.outputs[number] = outputs
        tokens = sum(item.max_tokens for item in work)
        return {"tokens_per_s": tokens / seconds, "tokens_per_cpu_s": tokens / max(used_s, 0.01)}

    def close(self) -> None:
        """End it."""
        self._resident.close()


@contextmanager
def started(
    residents: Mapping[str, Resident], make_work: Callable[[str, int], Sequence[Prompt]]
) -> Generator[tuple[list[Contender], dict[str, Trial]]]:
    """All of them loaded and warm, as contenders; they end with the block. `make_work` gives each one's of a round."""
    with ExitStack() as stack:
        trials = {name: Trial(resident, partial(make_work, name)) for name, resident in residents.items()}
        for trial in trials.values():
            stack.callback(trial.close)
            trial.start()
        yield [Contender(name=name, measure=trial.measure) for name, trial in trials.items()], trials
