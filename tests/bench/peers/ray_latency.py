"""Seconds of one call of a Ray actor on an idle system."""

from ray_local import local_ray, ray
from ray_overhead import Echo
from workload import latencies, percentiles_ms, say, told

arguments = told()
with local_ray(arguments["folder"], cpus=2):
    actor = ray.remote(num_cpus=1)(Echo).remote()

    def answer(prompt):
        """One call."""
        return ray.get(actor.echo.remote(prompt))

    latencies(answer, 20)  # the actor is up, and warm
    say(percentiles_ms(latencies(answer, arguments["requests"])))
