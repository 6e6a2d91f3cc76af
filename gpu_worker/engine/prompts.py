"""From a request to the token ids that the model reads, refusing what it cannot."""

import threading
from typing import Any

from broker.errors import InvalidRequestError
from broker.messages import Request


class PromptReader:
    """Tokenises prompts as a user of `generate` would.

    `vocabulary` is the number of rows of the model's embedding; ids from there on would crash it.
    """

    def __init__(self, tokenizer: Any, *, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        # Fast tokenizers refuse to be used by two threads at once ("Already borrowed").
        self._lock = threading.Lock()

    def token_ids(self, request: Request) -> tuple[int, ...]:
        """The prompt's token ids, with what the model's chat template or tokenizer adds.

        Raises:
            InvalidRequestError: no chat template, a template that refuses the messages, ids out of range, or text
                that the tokenizer makes nothing of.
        """
        if request.input_ids is not None:
            self._require_known(request.input_ids)
            return request.input_ids
        try:
            with self._lock:
                ids = self._chat(request) if request.messages else self._plain(request)
        except InvalidRequestError:
            raise
        except Exception as error:  # jinja, tokenizers and templates raise what they like
            raise InvalidRequestError(f"the prompt cannot be tokenised: {error}") from error
        if not ids:
            raise InvalidRequestError("the prompt is empty: the tokenizer makes no token of it")
        return tuple(ids)

    def decode(self, token_ids: Any) -> str:
        """Text of generated tokens, without special ones."""
        with self._lock:
            return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def _plain(self, request: Request) -> list[int]:
        return self._tokenizer(request.prompt)["input_ids"]

    def _chat(self, request: Request) -> list[int]:
        if self._tokenizer.chat_template is None:
            raise InvalidRequestError("messages: this model has no chat template; send a prompt")
        turns = [{"role": m.role, "content": m.content} for m in request.messages or ()]
        encoded = self._tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, tokenize=True, return_dict=True
        )
        return encoded["input_ids"]

    def _require_known(self, input_ids: tuple[int, ...]) -> None:
        for place, token_id in enumerate(input_ids):
            if not 0 <= token_id < self._vocabulary:
                raise InvalidRequestError(
                    f"input_ids[{place}] must be from 0 to {self._vocabulary - 1}, not {token_id}"
                )
