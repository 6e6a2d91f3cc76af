"""One mix of jobs by real workers and by the simulation: do order and shares agree?"""

import tempfile
from pathlib import Path

from tests.simulate.agreement import Agreement, compare
from tests.simulate.mix import simulate_mix
from tests.simulate.real import run_mix
from tests.support.cluster import Cluster

SLOTS = 8
TOKENS_PER_S = 40
CLEARLY = 0.05  # of the whole time, from which on the order of two ends must be the same
TOLERANCE = 0.05  # of a share of 1
START_S = 120.0


def measure_mix(workers: int, seconds: float) -> Agreement:
    """Run a mix that is that long when all slots are in use."""
    tokens = round(seconds * workers * SLOTS * TOKENS_PER_S)
    simulated = simulate_mix(tokens, gpus=workers, slots=SLOTS, tokens_per_s=TOKENS_PER_S)
    settings = {"STOKER_SIMULATED_SLOTS": str(SLOTS), "STOKER_SIMULATED_TOKENS_PER_S": str(TOKENS_PER_S)}
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder), settings)
        try:
            cluster.start_driver()
            for number in range(workers):
                cluster.start_worker(f"gpu{number}")
            cluster.ready(timeout=START_S)
            real = run_mix(cluster, tokens, 20 * seconds)
        finally:
            cluster.stop()
    return compare(simulated, real, clearly=CLEARLY)


def disagreements(found: Agreement) -> list[str]:
    """What is not as it should be, in sentences."""
    apart = [share for share in (*found.jobs, *found.users) if share.difference > TOLERANCE]
    return [
        *(f"{one!r} should end before {other!r}" for one, other in found.swapped),
        *(f"{job!r} was half done before 90 % of the higher classes were" for job in found.too_early),
        *(f"{share.name!r} has {share.real:.3f}, and {share.simulated:.3f} in the simulation" for share in apart),
    ]
