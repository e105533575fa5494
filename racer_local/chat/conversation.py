"""The turns of a chat, and which of them still fit the context. Layer: pure (stdlib only)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from racer_local.errors import ConfigError, ContextFullError

__all__ = ["Conversation", "Fitted", "Turn", "answer_room"]

Tokenize: TypeAlias = Callable[[Sequence[dict[str, Any]]], list[int]]

# Once turns have to go, this share of the room stays filled: dropping one turn at every question
# would change the start of the prompt, and so have all of it read again, each time.
_KEEP_SHARE = 0.7
_ANSWER_SHARE = 4


@dataclass(slots=True)
class Turn:
    """A question, and its answer as far as there is one."""

    user: str
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class Fitted:
    """A conversation that fits.

    Attributes:
        tokens: the prompt.
        n_dropped: turns left out for the first time.
    """

    tokens: list[int]
    n_dropped: int


def answer_room(n_ctx: int, max_tokens: int | None) -> int:
    """Return how many tokens of the context are kept free for the next answer."""
    room = max(1, n_ctx // _ANSWER_SHARE)
    return room if max_tokens is None else min(room, max_tokens)


@dataclass(slots=True)
class Conversation:
    """A chat with one model.

    Attributes:
        system: the system message, or None.
        turns: all turns, oldest first, those that no longer fit included.
        n_dropped: how many of the oldest turns the model is no longer shown.
    """

    system: str | None = None
    turns: list[Turn] = field(default_factory=list)
    n_dropped: int = 0

    def messages(self, n_dropped: int | None = None) -> list[dict[str, Any]]:
        """Return what the chat template is given, without the oldest turns."""
        messages = []
        if self.system is not None:
            messages.append({"role": "system", "content": self.system})
        for turn in self.turns[self.n_dropped if n_dropped is None else n_dropped :]:
            messages.append({"role": "user", "content": turn.user})
            if turn.answer is not None:
                messages.append({"role": "assistant", "content": turn.answer})
        return messages

    def ask(self, text: str) -> None:
        """Add a question.

        Raises:
            ConfigError: it is empty.
        """
        if not text.strip():
            raise ConfigError("the message is empty; give some text")
        self.turns.append(Turn(text))

    def answer(self, text: str) -> None:
        """Add the answer to the last question; an empty one takes the question back."""
        if text:
            self.turns[-1].answer = text
        else:
            self.take_back()

    def take_back(self) -> None:
        """Drop the last turn, if there is one."""
        if self.turns:
            self.turns.pop()
        self.n_dropped = min(self.n_dropped, len(self.turns))

    def reopen(self) -> Turn:
        """Make the last question unanswered again, and return it as it was.

        Raises:
            ConfigError: there is none.
        """
        if not self.turns:
            raise ConfigError("there is nothing to answer again yet")
        last = self.turns[-1]
        self.turns[-1] = Turn(last.user)
        return last

    def clear(self) -> None:
        """Drop all turns; the system message stays."""
        self.turns.clear()
        self.n_dropped = 0

    def fit(self, tokenize: Tokenize, n_ctx: int, room: int) -> Fitted:
        """Turn the conversation into a prompt that leaves room for an answer.

        Where it does not fit, the oldest turns are left out from now on. The last question is
        always part of it.

        Args:
            tokenize: from messages to token ids, through the model's chat template.
            n_ctx: tokens the context holds.
            room: of these, tokens to keep free.

        Raises:
            ContextFullError: the last question alone does not fit; nothing has changed then.
            ConfigError: from ``tokenize``; nothing has changed then.
        """
        limit = max(1, n_ctx - room)
        last = len(self.turns) - 1
        n_dropped = self.n_dropped
        tokens = tokenize(self.messages(n_dropped))
        if len(tokens) > limit:
            while len(tokens) > _KEEP_SHARE * limit and n_dropped < last:
                n_dropped += 1
                tokens = tokenize(self.messages(n_dropped))
        if len(tokens) >= n_ctx:
            raise ContextFullError(len(tokens), n_ctx)
        newly, self.n_dropped = n_dropped - self.n_dropped, n_dropped
        return Fitted(tokens, newly)
