"""What a killed worker costs with Celery: two workers of one process each, late acknowledgement."""

import contextlib
import os

from interruption import KINDS, Interruption
from workload import running, say, told

WORKER = ("celery", "-A", "recovery_celery_app", "worker", "--concurrency", "1", "-l", "ERROR")


class System:
    """See `interruption.System`."""

    def __init__(self, arguments):
        from recovery_celery_app import generate

        self._generate = generate
        self._arguments = arguments
        self._open = []
        self._done = 0

    def submit(self, indices):
        """A task a request."""
        work = [self._arguments[name] for name in ("tokens", "tokens_per_s")]
        self._done = 0
        self._open = [self._generate.delay(self._arguments["folder"], index, *work) for index in indices]

    def finished(self):
        """Asks for those that were not there yet."""
        still = [result for result in self._open if not result.ready()]
        self._done += len(self._open) - len(still)
        self._open = still
        return self._done


def main():
    """The child alone, then the whole worker."""
    arguments = told()
    os.environ["PEER_URL"] = arguments["broker_url"]
    if arguments.get("visibility_s"):
        os.environ["PEER_VISIBILITY_S"] = str(arguments["visibility_s"])
    with contextlib.ExitStack() as stack:
        for name in ("a", "b"):
            stack.enter_context(running(*WORKER, "-n", f"{name}@%h"))
        run = Interruption(System(arguments), arguments)
        run.warm_up()  # both workers are up
        figures = {"undisturbed_s": run.undisturbed_s()}
        for kind, victims in KINDS.items():
            if kind in arguments["kinds"]:
                figures |= run.disturbed(kind, victims)
        say(figures)


if __name__ == "__main__":
    main()
