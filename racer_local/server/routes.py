"""The addresses of the API."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response

from racer_local.backend.model import LlamaModel
from racer_local.server.faults import ApiError, SafeRoute
from racer_local.server.metrics import CONTENT_TYPE
from racer_local.server.replies import ChatReply, CompletionReply
from racer_local.server.reply_schema import (
    ChatCompletion,
    Completion,
    Detokenized,
    ErrorReply,
    Health,
    Model,
    ModelList,
    Tokenized,
)
from racer_local.server.request_mapping import (
    ask_chat,
    ask_completions,
    detokenize,
    require_known,
)
from racer_local.server.schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from racer_local.server.service import ApiService

__all__ = ["add_routes"]

# Without a schema: it would be taken for that of a single event.
_STREAM: dict[str, Any] = {"text/event-stream": {}}
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorReply} for status in (400, 401, 403, 404, 405, 413, 415, 422, 500, 503)
}


def _answers(model: type, *, can_stream: bool = False) -> dict[int | str, dict[str, Any]]:
    good: dict[str, Any] = {"model": model}
    if can_stream:
        good["content"] = _STREAM
    return {**_ERRORS, 200: good}


def add_routes(app: FastAPI, service: ApiService) -> None:
    """Add all addresses, with ``/v1`` before them and without."""
    api = APIRouter(route_class=SafeRoute)
    _add_generation(api, service)
    _add_models(api, service)
    _add_tokens(api, service)
    app.include_router(api, prefix="/v1")
    app.include_router(api, include_in_schema=False)
    state = APIRouter(route_class=SafeRoute)
    _add_state(app, state, service)
    app.include_router(state)


def _add_generation(api: APIRouter, service: ApiService) -> None:
    @api.post(
        "/chat/completions",
        response_model=None,
        responses=_answers(ChatCompletion, can_stream=True),
    )
    async def chat_completions(request: Request, body: ChatRequest) -> Response:
        """Answer a conversation."""
        model = service.host.facts.id
        reply = ChatReply(model, body.n_choices, has_logprobs=body.n_top is not None)
        return await service.answer(
            request,
            lambda session: ask_chat(session, body, service.config),
            reply,
            stream=bool(body.stream),
            wants_usage=body.wants_usage,
        )

    @api.post("/completions", response_model=None, responses=_answers(Completion, can_stream=True))
    async def completions(request: Request, body: CompletionRequest) -> Response:
        """Continue a text."""
        n_choices = len(body.prompts) * body.n_choices
        model = service.host.facts.id
        reply = CompletionReply(model, n_choices, has_logprobs=body.logprobs is not None)
        return await service.answer(
            request,
            lambda session: ask_completions(session, body, service.config),
            reply,
            stream=bool(body.stream),
            wants_usage=body.wants_usage,
        )


def _model(service: ApiService) -> dict[str, Any]:
    facts = service.host.facts
    return {
        "id": facts.id,
        "object": "model",
        "created": facts.created,
        "owned_by": "racer_local",
        "meta": {"n_ctx": facts.n_ctx, "n_ctx_train": facts.n_ctx_train},
    }


def _add_models(api: APIRouter, service: ApiService) -> None:
    @api.get("/models", response_model=None, responses=_answers(ModelList))
    async def models() -> JSONResponse:
        """List the one model; also while it loads."""
        return JSONResponse({"object": "list", "data": [_model(service)]})

    @api.get("/models/{name:path}", response_model=None, responses=_answers(Model))
    async def model(name: str) -> JSONResponse:
        """Describe the model."""
        if name != service.host.facts.id:
            raise ApiError(404, "there is no such model here", code="model_not_found")
        return JSONResponse(_model(service))


def _add_tokens(api: APIRouter, service: ApiService) -> None:
    async def with_vocabulary(request: Request, work: Any) -> Any:
        service.require_ready()

        def on_another_thread() -> Any:
            with service.host.vocabulary() as model:
                return None if model is None else (work(model),)

        done = await asyncio.to_thread(on_another_thread)
        return done[0] if done is not None else await service.compute(request, work)

    @api.post("/tokenize", response_model=None, responses=_answers(Tokenized))
    async def tokenize(request: Request, body: TokenizeRequest) -> JSONResponse:
        """Return the token ids of a text."""
        text = body.content if body.content is not None else body.prompt or ""
        if len(text) > service.config.prompt_chars(service.host.facts.n_ctx):
            raise ApiError(400, "the text is too long", code="invalid_value", param="content")

        def work(model: LlamaModel) -> list[int]:
            return model.tokenize(
                text, add_special=bool(body.add_special), parse_special=bool(body.parse_special)
            )

        tokens = await with_vocabulary(request, work) if text else []
        return JSONResponse({"tokens": tokens, "count": len(tokens)})

    @api.post("/detokenize", response_model=None, responses=_answers(Detokenized))
    async def detokenized(request: Request, body: DetokenizeRequest) -> JSONResponse:
        """Return the text of token ids."""

        def work(model: LlamaModel) -> str:
            require_known(model, body.tokens, "tokens")
            return detokenize(model, body.tokens)

        text = await with_vocabulary(request, work)
        return JSONResponse({"content": text})


def _add_state(app: FastAPI, state: APIRouter, service: ApiService) -> None:
    @state.get("/health", response_model=None, responses=_answers(Health))
    @state.get("/v1/health", include_in_schema=False, response_model=None)
    async def health() -> JSONResponse:
        """Tell whether requests are taken."""
        service.require_ready()
        is_loaded = service.host.state == "ready"
        return JSONResponse({"status": "ok", "model_loaded": is_loaded})

    @state.get(
        "/metrics",
        response_class=Response,
        responses={**_ERRORS, 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        """Tell all counters, for Prometheus."""
        return Response(service.metrics.text(), headers={"content-type": CONTENT_TYPE})

    @state.get("/openapi.json", include_in_schema=False)
    async def openapi() -> JSONResponse:
        return JSONResponse(app.openapi())
