"""From a request to what is sent to a server, or why it cannot be sent."""

from broker.errors import UnsupportedParameterError
from broker.messages import Request
from gpu_worker.engine.base import Traits
from gpu_worker.engine.errors import require_fit
from gpu_worker.engine.openai_client import About
from gpu_worker.engine.openai_held import HeldCall
from gpu_worker.engine.openai_wire import call_of
from gpu_worker.engine.prompts import PromptReader, truncated


class OpenAIIntake:
    """Reads requests for one server. `prompts` counts what is text, and gives its ids; without it the server does."""

    def __init__(self, about: About, prompts: PromptReader | None) -> None:
        self._about = about
        self._prompts = prompts

    @property
    def traits(self) -> Traits:
        """As the kind of server has it."""
        refused = self._about.dialect.refuses
        return Traits(refuses=refused if self._prompts else refused | {"return_input_ids"}, token_ids=False)

    def held(self, request_id: str, request: Request, *, context_tokens: int) -> HeldCall:
        """The request as it is held while the server works on it.

        Raises:
            InvalidRequestError: it cannot be run as it stands.
        """
        about, params = self._about, request.params
        call = call_of(about.dialect, about.model, request)
        prompt_ids = self._prompt_ids(request)
        require_fit(len(prompt_ids), params.max_tokens, context_tokens)
        return HeldCall(
            request_id=request_id,
            request=request,
            call=call,
            prompt_ids=prompt_ids,
            cuts=not about.dialect.cuts_stop,
            prefix=self._prompt_text(request, prompt_ids) if params.echo else "",
        )

    def _prompt_ids(self, request: Request) -> tuple[int, ...]:
        if self._prompts is not None:
            # Some servers pass over tokens that they do not know.
            self._prompts.require_known("stop_token_ids", request.params.stop_token_ids)
            self._prompts.require_known("logit_bias", [token for token, _ in request.params.logit_bias])
            return self._prompts.token_ids(request)
        if request.return_input_ids:
            raise UnsupportedParameterError(
                "return_input_ids needs the model's tokenizer beside the server: set STOKER_OPENAI_TOKENIZER"
            )
        return truncated(request.input_ids or (), request)

    def _prompt_text(self, request: Request, prompt_ids: tuple[int, ...]) -> str:
        if request.prompt is not None and request.params.truncate_prompt_tokens is None:
            return request.prompt
        if self._prompts is None:
            raise UnsupportedParameterError(
                "echo of token ids or of a truncated prompt needs the model's tokenizer beside the server: set"
                " STOKER_OPENAI_TOKENIZER"
            )
        return self._prompts.decode(prompt_ids)
