"""From a model's name to the model in memory: a packaged alias, a GGUF file, a folder, or a name on the hub.

Code that comes with a model runs only where that is asked for, and what is on this machine is loaded without the
network.
"""

from pathlib import Path
from typing import Any

import msgspec
import torch
import transformers
from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.utils import disable_progress_bars
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from broker.errors import ConfigurationError
from gpu_worker.engine.gguf import converted
from gpu_worker.engine.progress import report
from gpu_worker.engine.source import PACKAGED, ModelSource, resolve
from gpu_worker.engine.split import require_spread, spread_over

_HUB_TIMEOUT_S = 10.0
_DTYPES = ("auto", "float32", "float16", "bfloat16")


class LoadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is found and loaded, beside its dtype and device."""

    revision: str = ""  # of a model on the hub: a branch, a tag or a commit; the main branch if empty
    attention: str = "auto"  # implementation, in transformers' words
    trust_remote_code: bool = False
    offline: bool = False  # never ask the hub
    gpus: int = 1  # over which the model is spread; they are all that this process sees


class LoadedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model on its device, its tokenizer, and a short name to show."""

    model: Any
    tokenizer: Any
    name: str


def load_model(
    spec: str,
    *,
    cache_dir: Path,
    dtype: str = "auto",
    device: str | None = None,
    how: LoadOptions | None = None,
) -> LoadedModel:
    """Load a model and its tokenizer.

    `dtype` "auto" is float32 on a CPU; on a GPU it is the checkpoint's own, or bfloat16 where that is float32.
    Without a `device` it is the first GPU, or the CPU where there is none. A GGUF is converted once, into
    `cache_dir`/models.

    Raises:
        ConfigurationError: no such model, revision, device or dtype; the message says where it was looked for.
    """
    _silence()
    if dtype not in _DTYPES:
        raise ConfigurationError(f"dtype: {dtype!r} is none of {', '.join(_DTYPES)}")
    how = how or LoadOptions()
    source, target = resolve(spec), _device(device)
    _require_sense(source, target, how)
    if source.path is not None and source.path.suffix == ".gguf":
        report("converting the weights")
        source = ModelSource(name=source.name, path=converted(source.path, source.name, cache_dir))
    try:
        if source.path is None:
            report("looking for the model")
            _require_reachable(source.name, how)
        report("loading the weights")
        return _load(source, dtype, target, how)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"model: {source.location} cannot be loaded: {error}") from error


def _device(name: str | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigurationError(f"device: {name!r} is none; give cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError(f"device: {name} was asked for, but torch sees no GPU here; give cpu")
    return device


def _require_sense(source: ModelSource, device: torch.device, how: LoadOptions) -> None:
    if how.revision and source.path is not None:
        raise ConfigurationError(
            f"revision={how.revision!r}: {source.path} is on this machine; only the hub has revisions"
        )
    if how.attention.startswith("flash") and device.type == "cpu":
        raise ConfigurationError(f"attention={how.attention!r} needs a GPU; give auto, sdpa or eager")


def _require_reachable(name: str, how: LoadOptions) -> None:
    """Refuse at once a hub model that is not in the hub's cache here, nor to be downloaded."""
    if isinstance(try_to_load_from_cache(name, "config.json", revision=how.revision or None), str):
        return
    if how.offline:
        wanted = f"{name} at revision {how.revision}" if how.revision else name
        raise ConfigurationError(
            f"model: {wanted} is not in the hub's cache on this machine, and offline=true forbids to ask the hub;"
            " download it once without that, or give a local folder"
        )
    try:
        # Asked first, as the download retries for half a minute where there is no network.
        HfApi().model_info(name, revision=how.revision or None, timeout=_HUB_TIMEOUT_S)
    except Exception as error:  # the hub's own errors and those of its HTTP client
        raise ConfigurationError(
            f"model: {name} is neither on this machine nor to be had from the Hugging Face hub ({error}). Check"
            f" the name and the network, or give a local folder or one of: {', '.join(PACKAGED)}"
        ) from error


def _load(source: ModelSource, dtype: str, device: torch.device, how: LoadOptions) -> LoadedModel:
    where: dict[str, Any] = {
        "local_files_only": how.offline or source.path is not None,
        "trust_remote_code": how.trust_remote_code,
    }
    if how.revision:
        where["revision"] = how.revision
    config = AutoConfig.from_pretrained(source.location, **where)
    model: Any = AutoModelForCausalLM.from_pretrained(
        source.location,
        config=config,
        dtype=_dtype(dtype, config, device),
        attn_implementation=None if how.attention == "auto" else how.attention,
        **_place(device, how),
        **where,
    )
    if how.gpus > 1:
        require_spread(model)
    tokenizer = AutoTokenizer.from_pretrained(source.location, **where)
    return LoadedModel(model=model.eval(), tokenizer=tokenizer, name=source.name)


def _place(device: torch.device, how: LoadOptions) -> dict[str, Any]:
    if how.gpus > 1:
        return spread_over(how.gpus)
    return {"device_map": None if device.type == "cpu" else {"": device}}


def _dtype(name: str, config: Any, device: torch.device) -> torch.dtype:
    if name != "auto":
        return getattr(torch, name)
    if device.type == "cpu":
        return torch.float32
    own = config.get_text_config().dtype or torch.float32
    if own is torch.float32:
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return own


def _silence() -> None:
    """No progress bars and advice in a worker's log; errors still come as exceptions."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    disable_progress_bars()
