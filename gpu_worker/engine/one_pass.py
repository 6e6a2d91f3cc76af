"""One forward pass of a model at a time, whichever thread asks for it.

For as long as a pass lasts, transformers (5.24, `merge_with_config_defaults`) writes its `is_causal` into the config
that all passes of the model share. A plain pass beside one of the loop then reads tokens that come later, gives wrong
scores without an error, and may leave the config changed for good.
"""

import threading
from typing import Any

import torch
from transformers import PreTrainedModel

_MARK = "_stoker_one_pass"


def one_pass_at_a_time(model: Any) -> None:
    """Make each pass of a model, or of a part that has its config, wait for the one before. Safe to call twice."""
    if hasattr(model, _MARK):
        return
    lock = threading.RLock()  # a model's pass holds those of its parts

    def begin(*_: Any) -> None:
        if not torch.compiler.is_compiling():  # a compiled pass has read the config when it was traced
            lock.acquire()

    def end(*_: Any) -> None:
        if not torch.compiler.is_compiling():
            lock.release()

    setattr(model, _MARK, True)  # not the lock: with one, nobody could copy the model
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            part.register_forward_pre_hook(begin, prepend=True)
            part.register_forward_hook(end, always_call=True)
