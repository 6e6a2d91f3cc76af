"""Runs a peer's script with the peers' own Python, on a Redis of its own, and leaves nothing of it running.

The script gets one JSON object as its argument and gives its figures as one JSON object in its last line of output.
"""

import functools
import os
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from broker.embedded import EmbeddedServer
from tests.bench.contender import Contender

ROOT = Path(__file__).parents[2]
PEERS = Path(__file__).parent / "peers"
PYTHON = "BENCH_PEERS_PYTHON"  # another interpreter than that of .venv-peers
MARK = "BENCH_PEER_MARK"  # every process that a peer starts inherits it
FSYNC = "everysec"  # as `stoker up` has it
GRACE_S = 5.0
PROBE = "import importlib.util, sys; print(*[n for n in sys.argv[1:] if importlib.util.find_spec(n)])"
VERSIONS = """
import importlib.metadata, sys
for name in sys.argv[1:]:
    try:
        print(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        pass
"""


class PeerError(Exception):
    """A peer's script failed, took too long, or gave no figures."""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A script in `peers/`, and the modules that it cannot do without."""

    script: str
    modules: tuple[str, ...]

    @property
    def is_installed(self) -> bool:
        """Whether the peers' Python has all of its modules."""
        return set(self.modules) <= installed_modules(peers_python(), self.modules)

    def contender(self, name: str, arguments: Mapping[str, object], timeout_s: float = 120.0) -> Contender:
        """A contender that runs the script with these arguments, with `broker_url` and `folder` added."""
        return Contender(name=name, measure=lambda: run_peer(self.script, arguments, timeout_s))


def peers_python() -> Path:
    """The peers' interpreter; it need not exist."""
    return Path(os.environ.get(PYTHON) or ROOT / ".venv-peers/bin/python")


@functools.cache
def installed_modules(python: Path, modules: tuple[str, ...]) -> frozenset[str]:
    """Which of these modules that Python can import; none where there is no such Python."""
    if not python.exists():
        return frozenset()
    return frozenset(_ask(PROBE, modules))


def peer_versions(distributions: Sequence[str]) -> dict[str, str]:
    """Versions of these distributions, as far as the peers' Python has them."""
    if not peers_python().exists():
        return {}
    words = _ask(VERSIONS, distributions)
    return dict(zip(words[::2], words[1::2], strict=True))


def run_peer(script: str, arguments: Mapping[str, object], timeout_s: float) -> dict[str, float]:
    """Run a script once, with a fresh server and folder; its figures.

    Raises:
        PeerError: it failed, took longer than `timeout_s` seconds, or gave no figures; with its last words.
    """
    with tempfile.TemporaryDirectory(prefix="bench-peer-") as name, EmbeddedServer(fsync=FSYNC) as server:
        folder = Path(name)
        told = msgspec.json.encode({"broker_url": server.url, "folder": name, **arguments}).decode()
        return _figures(_run(script, told, folder, timeout_s), script)


def _run(script: str, told: str, folder: Path, timeout_s: float) -> str:
    mark = uuid.uuid4().hex
    log = folder / "stderr.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [str(peers_python()), str(PEERS / script), told],
            cwd=PEERS,
            env=peer_environment(mark),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=sink,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise PeerError(f"took longer than {timeout_s:g} s") from None
        finally:
            end_group(process, mark)
    if process.returncode != 0:
        raise PeerError(f"{script} ended with {process.returncode}: {last_line(log.read_text('utf-8', 'replace'))}")
    return output.decode("utf-8", "replace")


def end_group(process: subprocess.Popen[bytes], mark: str) -> None:
    """End the script and everything it has started, also what has left its process group (Ray's servers do)."""
    left = [process.pid, *marked(mark)]
    for number in (signal.SIGTERM, signal.SIGKILL):
        alive = [psutil.Process(pid) for pid in left if psutil.pid_exists(pid)]
        for item in alive:
            _send(item, number)
        psutil.wait_procs([item for item in alive if item.pid != process.pid], timeout=GRACE_S)
        if process.poll() is None:
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                continue
        left = marked(mark)
    if process.stdout is not None:
        process.stdout.close()


def _send(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


def marked(mark: str) -> list[int]:
    """Ids of the processes that inherited this mark."""
    found: list[int] = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def peer_environment(mark: str) -> dict[str, str]:
    """Ours, without what belongs to Stoker and its Python."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STOKER_", "PYTHON"))}
    path = f"{peers_python().parent}:{kept.get('PATH', '')}"
    return kept | {MARK: mark, "PATH": path, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def _figures(output: str, script: str) -> dict[str, float]:
    try:
        return msgspec.json.decode(last_line(output), type=dict[str, float])
    except msgspec.DecodeError as error:
        raise PeerError(f"{script} gave no figures in its last line: {error}") from error


def last_line(text: str) -> str:
    """Where programs say why they end."""
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


def _ask(program: str, names: Sequence[str]) -> list[str]:
    command = [str(peers_python()), "-c", program, *names]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
