"""From a request to the token ids that the model reads, refusing what it cannot."""

import threading
from collections.abc import Sequence
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
        self._pieces: dict[int, str] = {}  # at most the vocabulary

    def token_ids(self, request: Request) -> tuple[int, ...]:
        """The prompt's token ids, with what the model's chat template or tokenizer adds.

        Raises:
            InvalidRequestError: no chat template, a template that refuses the messages, ids out of range, or text
                that the tokenizer makes nothing of.
        """
        if request.input_ids is not None:
            self.require_known("input_ids", request.input_ids)
            return truncated(request.input_ids, request)
        try:
            with self._lock:
                ids = self._chat(request) if request.messages else self._plain(request)
        except InvalidRequestError:
            raise
        except Exception as error:  # jinja, tokenizers and templates raise what they like
            raise InvalidRequestError(f"the prompt cannot be tokenised: {error}") from error
        if not ids:
            raise InvalidRequestError("the prompt is empty: the tokenizer makes no token of it")
        return truncated(tuple(ids), request)

    def decode(self, token_ids: Any) -> str:
        """Text of generated tokens, without special ones."""
        with self._lock:
            return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def piece(self, token_id: int) -> str:
        """The text of one token in the middle of others, special ones too; U+FFFD for a part of a character."""
        if token_id not in self._pieces:
            with self._lock:
                self._pieces[token_id] = self._decode_piece(token_id)
        return self._pieces[token_id]

    def require_known(self, name: str, token_ids: Sequence[int]) -> None:
        """Refuse token ids that the model does not have.

        Raises:
            InvalidRequestError: names the field and the place.
        """
        for place, token_id in enumerate(token_ids):
            if not 0 <= token_id < self._vocabulary:
                raise InvalidRequestError(f"{name}[{place}] must be from 0 to {self._vocabulary - 1}, not {token_id}")

    def _decode_piece(self, token_id: int) -> str:
        # Alone, or at the beginning of a text, some tokenizers drop a token's leading space.
        anchor = self._tokenizer("a", add_special_tokens=False)["input_ids"]
        before = self._tokenizer.decode(anchor)
        both = self._tokenizer.decode([*anchor, token_id])
        return both[len(before) :] if both.startswith(before) else self._tokenizer.decode([token_id])

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


def truncated(prompt_ids: tuple[int, ...], request: Request) -> tuple[int, ...]:
    """The end of a prompt, where the request wants no more of it."""
    kept = request.params.truncate_prompt_tokens
    return prompt_ids if kept is None else prompt_ids[-kept:]
