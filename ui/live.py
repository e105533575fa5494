"""An answer while it is written, past Gradio: new text alone, a few times a second.

To show a changed conversation Gradio's server and the browser take a tenth of a second of one
core, which on a machine without spare cores is taken from the model. So there the page gets the
text that is still growing as plain lines of JSON, and the conversation itself is shown anew only
when a paragraph is complete.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator
from html import escape

from fastapi import FastAPI
from fastapi.requests import Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse

from .answer import LiveAnswer
from .panels import figure_values

__all__ = ["LiveAnswers", "add_live", "mark", "settled"]

# Often enough to look alive.
_EVERY_S = 0.25
_FENCE = re.compile(r" {0,3}(```|~~~)")


class LiveAnswers:
    """The answers that are being written, each under a name that cannot be guessed."""

    def __init__(self) -> None:
        """Start with none."""
        self._answers: dict[str, LiveAnswer] = {}
        self._followed: set[str] = set()

    def open(self, answer: LiveAnswer) -> str:
        """Let an answer be followed; return the name to ask for."""
        name = secrets.token_urlsafe(16)
        self._answers[name] = answer
        return name

    def close(self, name: str) -> None:
        """Let it be followed no more; whoever does already still gets the rest."""
        self._answers.pop(name, None)
        self._followed.discard(name)

    def is_followed(self, name: str) -> bool:
        """Tell whether a page follows it."""
        return name in self._followed

    def find(self, name: str) -> LiveAnswer | None:
        """Return the answer of that name, if it is being written."""
        return self._answers.get(name)

    async def lines(self, name: str, answer: LiveAnswer) -> AsyncIterator[str]:
        """Yield what is new, as lines of JSON, until the answer is complete."""
        n_sent = 0
        self._followed.add(name)
        try:
            while True:
                is_done = answer.done.is_set()
                pieces = answer.pieces[n_sent:]
                n_sent += len(pieces)
                text = "".join(piece.text for piece in pieces)
                if text:
                    figures = figure_values(answer.stats)
                    yield json.dumps({"text": text, "figures": figures}) + "\n"
                if is_done:
                    return
                await asyncio.sleep(_EVERY_S)
        finally:
            self._followed.discard(name)


def add_live(app: FastAPI, live: LiveAnswers, path: str) -> None:
    """Serve the answers below ``path``; the app's host and origin checks stand before it."""

    async def follow(request: Request) -> Response:
        name = request.path_params["name"]
        answer = live.find(name)
        if answer is None:
            # It may have ended before the page asked, which is no error.
            return PlainTextResponse("", media_type="application/x-ndjson")
        return StreamingResponse(live.lines(name, answer), media_type="application/x-ndjson")

    app.add_route(f"{path.rstrip('/')}/live/{{name}}", follow, methods=["GET"])


def mark(name: str, shown: str) -> str:
    """Tell the page which answer to follow, and what of it the conversation shows already."""
    # Browsers count in UTF-16.
    n_units = len(shown.encode("utf-16-le")) // 2
    return f'<i data-answer="{escape(name)}" data-from="{n_units}"></i>'


def settled(text: str) -> str:
    """Return the part that what follows will hardly change: up to a blank line outside code."""
    place = end = 0
    fence = ""
    for line in text.splitlines(keepends=True):
        place += len(line)
        if (found := _FENCE.match(line)) is not None and fence in ("", found[1]):
            fence = "" if fence else found[1]
        elif not line.strip() and not fence and line.endswith("\n"):
            end = place
    return text[:end]
