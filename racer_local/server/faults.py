"""Errors, as OpenAI's clients expect them. No message tells a path or what was asked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from racer_local.errors import BusyError, ClosedError, ConfigError, ContextFullError

__all__ = ["ApiError", "SafeRoute", "api_error_of", "error_response", "install_error_handlers"]

logger = logging.getLogger(__name__)

_MAX_MESSAGE = 500
_RETRY_AFTER_S = 2


class ApiError(Exception):
    """An answer with an error status.

    Attributes:
        status: of HTTP.
        param: the field that is wrong.
        code: a word for programs.
        details: further keys of the error object.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Say what happened and what to do."""
        self.status = status
        self.code = code
        self.param = param
        self.details = dict(details or {})
        super().__init__(message)

    @property
    def body(self) -> dict[str, Any]:
        """The answer's body."""
        kinds = {401: "authentication_error", 403: "permission_error", 503: "server_error"}
        kind = kinds.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
        # An error quotes what was sent, which may hold half a character.
        message = str(self).encode("utf-8", "replace").decode("utf-8")[:_MAX_MESSAGE]
        return {
            "error": {
                "message": message,
                "type": kind,
                "param": self.param,
                "code": self.code,
                **self.details,
            }
        }


def api_error_of(error: BaseException) -> ApiError:
    """Say in the API's terms what an error is; what is not the caller's fault is logged."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextFullError):
        message = (
            f"the prompt has {error.n_prompt} tokens but the context holds {error.n_ctx}; "
            "shorten it, or serve the model with a larger context"
        )
        return ApiError(
            400,
            message,
            code="context_length_exceeded",
            param="messages",
            details={"n_prompt_tokens": error.n_prompt, "n_ctx": error.n_ctx},
        )
    if isinstance(error, BusyError | ClosedError):
        return ApiError(503, "the server is stopping or the model is busy", code="unavailable")
    if isinstance(error, ConfigError):
        return ApiError(400, str(error), code="invalid_value")
    # What it says may name a file, so that only goes to the log.
    logger.error("a request failed: %s: %s", type(error).__name__, error)
    logger.debug("the failed request", exc_info=error)
    return ApiError(500, "the request failed; the server's log says why", code="internal_error")


def error_response(error: BaseException) -> JSONResponse:
    """Make the response that tells an error."""
    told = api_error_of(error)
    headers = {}
    if told.status == 503:
        headers["Retry-After"] = str(_RETRY_AFTER_S)
    elif told.status >= 400:
        # Asking the same again gives the same.
        headers["x-should-retry"] = "false"
    return JSONResponse(told.body, told.status, headers)


def _validation_error(error: RequestValidationError) -> ApiError:
    first = error.errors()[0]
    where = [str(part) for part in first.get("loc", ()) if part != "body"]
    name = ".".join(where) or None
    message = str(first.get("msg", "the request is not valid"))
    message = message.removeprefix("Value error, ")
    if first.get("type") == "json_invalid":
        return ApiError(400, "the body is not valid JSON", code="invalid_json")
    shown = f"{name}: {message}" if name else message
    return ApiError(400, shown, code="invalid_value", param=name)


class SafeRoute(APIRoute):
    """A route whose every error is an answer.

    Starlette's own handler of unexpected errors answers as well, but raises them again, which
    cuts the connection and prints a traceback.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with a net below it."""
        handle = super().get_route_handler()

        async def handle_safely(request: Request) -> Response:
            try:
                return await handle(request)
            except (RequestValidationError, HTTPException):
                raise
            except Exception as error:  # noqa: BLE001 - told the client
                return error_response(error)

        return handle_safely


def install_error_handlers(app: FastAPI) -> None:
    """Have every error of the app answered in OpenAI's form."""

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return error_response(_validation_error(error))

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> JSONResponse:
        codes = {404: "not_found", 405: "method_not_allowed"}
        code = codes.get(error.status_code, "invalid_request")
        message = {404: "there is nothing at this address"}.get(
            error.status_code, str(error.detail)
        )
        response = error_response(ApiError(error.status_code, message, code=code))
        response.headers.update(error.headers or {})
        return response
