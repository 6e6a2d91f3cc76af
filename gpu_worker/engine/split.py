"""A model over several GPUs: how its layers are spread, and which models can be.

Not run on GPUs yet: tested with accelerate's hooks in place on a CPU.
"""

from typing import Any

import torch

from broker.errors import ConfigurationError

_SHARE = 0.9  # of each GPU's free memory, at most, for weights
# What the padded batch can hold for a layer: keys and values of all tokens.
_LAYERS = frozenset(("full_attention", "sliding_attention"))


def spread_over(gpus: int) -> dict[str, Any]:
    """What `from_pretrained` takes to spread a model evenly over all of the GPUs that this process sees.

    Raises:
        ConfigurationError: it sees fewer.
    """
    there = torch.cuda.device_count()
    if there < gpus:
        raise ConfigurationError(f"device: a model over {gpus} GPUs was asked for, but torch sees {there} here")
    memory = {index: int(_SHARE * torch.cuda.mem_get_info(index)[0]) for index in range(gpus)}
    # The CPU and the disk are left out: a model that needs them would be slower by orders.
    return {"device_map": "auto", "max_memory": memory}


def require_spread(model: Any) -> None:
    """Refuse a model that did not find room on the GPUs, or has layers with a state of another kind.

    Raises:
        ConfigurationError: says which.
    """
    elsewhere = sorted({str(place) for place in model.hf_device_map.values()} & {"cpu", "disk", "meta"})
    if elsewhere:
        raise ConfigurationError(
            f"device: the GPUs are too small for the model, of which a part would be on {', '.join(elsewhere)};"
            " give more of them"
        )
    if not keeps_tokens_only(model):
        raise ConfigurationError(
            "device: this model keeps more than keys and values of its tokens, and runs on one GPU only; give one"
        )


def keeps_tokens_only(model: Any) -> bool:
    """Whether all that its layers keep are keys and values of tokens, as far as its config tells."""
    layers = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    return not model._is_stateful and layers <= _LAYERS
