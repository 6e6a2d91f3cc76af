"""How much of a model's speed is left: the same greedy requests, brought to the same model in several ways."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tests.bench.comparison import Comparison, compare
from tests.bench.model_stoker import StokerModel
from tests.bench.model_work import Prompt, make_work, same_tokens
from tests.bench.peer import Peer, peer_versions
from tests.bench.plot import bars
from tests.bench.resident import ResidentPeer
from tests.bench.residents import Resident, Trial, started
from tests.bench.scenario import Report, chosen, report_of
from tests.bench.table import NOTHING, Column, comparison_table, spread

STOKER, IN_PROCESS = "Stoker", "transformers' loop, in process"
PLOT = "bench-efficiency.svg"
GOAL = 0.95
LISTS = 16  # as in peers/model_celery_app.py
# The sizes of Stoker's loop on a CPU (gpu_worker/engine/continuous.py), so that all loops make the same steps.
LOOP = {"page_size": 32, "num_blocks": 256, "max_batch_tokens": 256, "max_requests_per_batch": 64}
CACHE = Path("~/.cache/stoker").expanduser()

_LOOP, _CELERY = ("torch", "transformers"), ("torch", "transformers", "celery", "celery_batches", "redis")
PEERS = {
    IN_PROCESS: Peer(script="model_in_process.py", modules=_LOOP),
    "Ray actor around the same loop": Peer(script="model_ray.py", modules=(*_LOOP, "ray")),
    f"Celery, a task a list of {LISTS}": Peer(script="model_celery.py", modules=_CELERY),
    f"celery-batches, {LISTS} at once": Peer(script="model_celery.py", modules=_CELERY),
    "Celery, a task a prompt": Peer(script="model_celery.py", modules=_CELERY),
}
WAYS = dict(zip(PEERS, ("", "", "lists", "gathered", "one"), strict=True))
_DISTRIBUTIONS = ("torch", "transformers", "celery", "celery-batches", "ray")


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a run: the greatest numbers of words of a prompt and of new tokens, and torch's threads."""

    requests: int = 256
    static_requests: int = 64  # of these, for who calls `generate`: one list takes as long whatever comes behind it
    prompt_words: int = 12
    new_tokens: int = 8
    rounds: int = 5
    threads: int = 1
    model: str = "smollm2-135m"
    engine: str = "transformers"

    def work(self, name: str, number: int) -> list[Prompt]:
        """A contender's in one round: other prompts each time, so that no cache has seen them."""
        work = make_work(self.requests, self.prompt_words, self.new_tokens, seed=number)
        return work[: self.static_requests] if WAYS.get(name) else work


QUICK = Sizes(requests=6, prompt_words=3, new_tokens=3, rounds=1)


def run_efficiency(sizes: Sizes, *, quick: bool = False) -> Report:
    """Measure Stoker and the peers; a quick run where no peer is installed has no model either."""
    peers = chosen(PEERS, quick=quick)
    if quick:
        sizes = msgspec.structs.replace(QUICK, engine="transformers" if peers else "simulated")
    return measure_efficiency(sizes, peers)


def measure_efficiency(sizes: Sizes, peers: Mapping[str, Peer]) -> Report:
    """All of them loaded and warm before the first round, and until the last."""
    environment = {"OMP_NUM_THREADS": str(sizes.threads)}
    settings = {"STOKER_ENGINE": sizes.engine, "STOKER_MODEL": sizes.model, **environment}
    residents: dict[str, Resident] = {STOKER: StokerModel(settings)}
    if peers:
        told = {"model": str(_folder(sizes.model)), "threads": sizes.threads, "sizes": LOOP}
        for name, peer in peers.items():
            residents[name] = ResidentPeer(peer.script, told | {"way": WAYS[name]}, environment)
    with started(residents, sizes.work) as (contenders, trials):
        comparison = compare(contenders, sizes.rounds)
    versions = peer_versions(_DISTRIBUTIONS) if peers else {}
    plots = {PLOT: bars(comparison, "tokens_per_s", f"New tokens per second of {sizes.model} on a CPU")}
    return report_of(comparison, body(sizes, comparison, trials), versions, plots)


def _folder(model: str) -> Path:
    """The model as a plain folder, which Stoker's worker would make, too."""
    from gpu_worker.engine.gguf import converted
    from gpu_worker.engine.loading import resolve

    source = resolve(model)
    if source.path is None or source.path.suffix != ".gguf":
        return Path(source.location)
    return converted(source.path, source.name, CACHE)


def body(sizes: Sizes, comparison: Comparison, trials: Mapping[str, Trial]) -> str:
    columns = [
        Column(metric="tokens_per_s", title="new tokens/s", ratio="Stoker / it"),
        Column(metric="tokens_per_cpu_s", title="new tokens per second of CPU, all processes", ratio="Stoker / it"),
    ]
    notes = _equality(trials)
    return "\n\n".join(
        (
            _about(sizes),
            comparison_table(comparison, columns, notes, "same tokens as in process"),
            _verdict(comparison),
            f"![New tokens per second]({PLOT})",
        )
    )


def _about(sizes: Sizes) -> str:
    tokens = [sum(item.max_tokens for item in sizes.work(STOKER, number)) for number in range(sizes.rounds)]
    threads = "one torch thread" if sizes.threads == 1 else f"{sizes.threads} torch threads"
    return (
        f"{sizes.model} on the CPU in float32, {threads} each; {sizes.requests} greedy requests a round with 1 to"
        f" {sizes.prompt_words} words and 1 to {sizes.new_tokens} new tokens, {min(tokens)} to {max(tokens)} in all,"
        " other ones in each round. Every model is loaded and warm before the first round, and its process stays. The"
        " loop is transformers' continuous batching, which Stoker's worker runs, too; Ray's actor gets a call a prompt."
        f" Celery's one worker and celery-batches call `generate`, and get the first {sizes.static_requests} requests:"
        " their speed does not depend on how many follow."
    )


def _equality(trials: Mapping[str, Trial]) -> dict[str, str]:
    reference = trials.get(IN_PROCESS)
    if reference is None:
        return {}
    found: dict[str, str] = {}
    for name, trial in trials.items():
        same = [same_tokens(trial.outputs[key], reference.outputs[key]) for key in _both(trial, reference)]
        total = sum(len(trial.outputs[key]) for key in _both(trial, reference))
        found[name] = f"{sum(same)} of {total}" if total else NOTHING
    return found


def _both(one: Trial, other: Trial) -> Sequence[int]:
    return sorted(one.outputs.keys() & other.outputs.keys())


def _verdict(comparison: Comparison) -> str:
    names = [result.name for result in comparison.results]
    ratio = comparison.ratio(IN_PROCESS, "tokens_per_s") if IN_PROCESS in names else None
    if ratio is None:
        return "Not compared with the loop in process: that was not measured in this run."
    met = "met" if ratio.median >= GOAL else "missed"
    return f"Goal: at least {GOAL:g} of the loop in process. It is {spread(ratio)}: {met}."
