"""A model as it is over several devices, on the one that there is: every layer behind a hook of its own."""

from accelerate import dispatch_model


def spread(model):
    """The model, with accelerate's hooks."""
    places = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
    places |= {f"model.layers.{index}": "cpu" for index in range(model.config.num_hidden_layers)}
    dispatch_model(model, places, force_hooks=True, skip_keys=model._skip_keys_device_placement)
    assert all(hasattr(layer, "_hf_hook") for layer in model.model.layers)
    return model
