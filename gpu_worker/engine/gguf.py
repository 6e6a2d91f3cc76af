"""GGUF files as plain models on disk, converted once per machine.

Dequantising takes ~20 s for a 135M model, and a model loaded from GGUF refuses to be saved. So its weights move to
a plain model, which is saved under a temporary name and renamed when it is whole: a folder under its final name is
never half written, whoever was killed when.
"""

import fcntl
import functools
import hashlib
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, modeling_gguf_pytorch_utils

from broker.errors import ConfigurationError

_STALE_S = 86_400.0  # no conversion takes a day: what is older was left by a process that died
_TEMPORARY = ".tmp-"

# Its bar is drawn whatever transformers' own switch for progress bars says.
setattr(modeling_gguf_pytorch_utils, "tqdm", functools.partial(tqdm, disable=True))  # noqa: B010


def converted(gguf: Path, name: str, cache_dir: Path) -> Path:
    """The folder under `cache_dir`/models with the plain form of a GGUF file, converted now if need be.

    Raises:
        ConfigurationError: the file is no GGUF that transformers reads, or the folder cannot be written.
    """
    folder = cache_dir / "models" / f"{name}-{_identity(gguf)}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder.with_suffix(".lock")):
            if not folder.is_dir():
                _remove_stale(folder.parent)
                _convert(gguf, folder)
    except Exception as error:  # the parsers of a foreign format raise what they like
        raise ConfigurationError(f"model: {gguf} cannot be converted into {folder}: {error}") from error
    return folder


def _identity(gguf: Path) -> str:
    about = gguf.stat()
    what = (gguf.resolve(), about.st_size, about.st_mtime_ns, transformers.__version__)
    return hashlib.blake2b(repr(what).encode(), digest_size=6).hexdigest()


@contextmanager
def _alone(lock: Path) -> Generator[None]:
    """Let one process convert and the others wait; the system frees the lock of one that dies."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _convert(gguf: Path, folder: Path) -> None:
    temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=folder.parent))
    try:
        _plain_model(gguf).save_pretrained(temporary)
        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name, local_files_only=True)
        tokenizer.save_pretrained(temporary)
        temporary.chmod(0o755)
        publish(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def publish(temporary: Path, folder: Path) -> None:
    """Rename a finished folder; where another process was faster (a lock may not hold on NFS), keep its."""
    try:
        temporary.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def _plain_model(gguf: Path) -> Any:
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
    )
    config = loaded.config
    del config.quantization_config
    plain: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(loaded.state_dict())
    plain.generation_config = loaded.generation_config
    return plain


def _remove_stale(models: Path) -> None:
    for left in models.glob(f"{_TEMPORARY}*"):
        if time.time() - left.stat().st_mtime > _STALE_S:
            shutil.rmtree(left, ignore_errors=True)
