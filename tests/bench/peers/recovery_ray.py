"""What a killed actor costs with Ray: a pool of two that are restarted, and calls that are tried again."""

import threading

import sleeping
from interruption import Interruption
from ray.util import ActorPool
from ray_local import local_ray, ray
from workload import say, told


class Engine:
    """Runs one call at a time."""

    def generate(self, folder, index, tokens, tokens_per_s):
        """One request."""
        return sleeping.generate(folder, index, tokens, tokens_per_s)


class System:
    """See `interruption.System`."""

    def __init__(self, arguments):
        actor = ray.remote(max_restarts=-1, max_task_retries=-1)(Engine)
        self._actors = [actor.remote() for _ in range(2)]
        self._arguments = arguments
        self._found = []

    def submit(self, indices):
        """A call a request, to whichever actor is free."""
        found = self._found = []
        work = [self._arguments[name] for name in ("folder", "tokens", "tokens_per_s")]

        def call(actor, index):
            return actor.generate.remote(work[0], index, *work[1:])

        def collect():
            found.extend(ActorPool(self._actors).map_unordered(call, list(indices)))

        threading.Thread(target=collect, daemon=True).start()

    def finished(self):
        """As they come."""
        return len(self._found)


def main():
    """An actor is one process: killing it is both kinds at once."""
    arguments = told()
    with local_ray(arguments["folder"], cpus=2):
        run = Interruption(System(arguments), arguments)
        run.warm_up()  # both actors are up
        figures = {"undisturbed_s": run.undisturbed_s()}
        figures |= run.disturbed("whole", lambda pid: [pid])
        say(figures)


if __name__ == "__main__":
    main()
