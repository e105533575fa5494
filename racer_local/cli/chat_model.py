"""The model a chat talks to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from racer_local.cli.books import book_arguments
from racer_local.cli.opening import open_session
from racer_local.cli.options import model_config
from racer_local.concurrency.closing import Closing
from racer_local.config import AUTO_LEAVES, DraftConfig
from racer_local.errors import ConfigError, RacerError

if TYPE_CHECKING:
    from racer_local.chat.conversation import Conversation, Fitted
    from racer_local.chat.settings import ChatSettings
    from racer_local.decoding.answer import Answer
    from racer_local.decoding.session import Session

__all__ = ["ChatModel"]

_N_TAIL = 8


class ChatModel(Closing):
    """A model that can be exchanged for another while the chat goes on.

    Attributes:
        draft: how tokens are drafted.
    """

    def __init__(self, options: dict[str, Any], draft: DraftConfig) -> None:
        """Open the model that the options name.

        Raises:
            RacerError: it cannot be opened, or has no chat template.
        """
        self.draft = draft
        self._options = options
        self._session: Session | None = None
        self._open(options)

    @property
    def session(self) -> Session:
        """The open model."""
        if self._session is None:
            raise ConfigError("no model is open; choose one with /model")
        return self._session

    @property
    def name(self) -> str:
        """What the model is called."""
        header = self.session.model.header
        return f"{header.name or header.path.stem} ({header.file_type})"

    @property
    def n_ctx(self) -> int:
        """Tokens the context holds."""
        return self.session.target.n_ctx

    def _open(self, options: dict[str, Any]) -> None:
        from racer_local.gguf.header import inspect_gguf

        config = model_config(options, self.draft)
        # The mode may change later: always leave room for trees.
        n_nodes = max(1, self.draft.budget)
        n_leaves = max(self.draft.max_leaves, min(n_nodes, AUTO_LEAVES))
        config = replace(config, max_nodes=n_nodes, max_leaves=n_leaves)
        if not inspect_gguf(config.path).has_chat_template:
            raise ConfigError(
                f"{config.path.name} has no chat template, so it is probably a base model; "
                "continue a text with it instead: racer-local generate --raw"
            )
        # Two models at once may not fit into memory.
        self.close()
        self._session = open_session(config, self.draft, **book_arguments(options))
        self._options = options

    def switch(self, name: str) -> None:
        """Go on with another model.

        Raises:
            RacerError: it cannot be opened; the one before is open again then.
        """
        self._reopen({**self._options, "model": name})

    @property
    def is_exact(self) -> bool:
        """Whether answers are token-identical to plain decoding."""
        return bool(self._options.get("exact"))

    def set_exact(self, is_exact: bool) -> None:
        """Open the model again with or without exact decoding.

        Raises:
            RacerError: this machine cannot; the model is open as before then.
        """
        if is_exact != self.is_exact:
            self._reopen({**self._options, "exact": is_exact})

    def _reopen(self, options: dict[str, Any]) -> None:
        before = self._options
        try:
            self._open(options)
        except (RacerError, KeyboardInterrupt):
            if self._session is None:
                self._open(before)
            raise

    def use(self, draft: DraftConfig) -> None:
        """Draft differently from the next answer on.

        Raises:
            ConfigError: the model was opened for smaller trees.
        """
        self.session.use(draft)
        self.draft = draft

    def fit(self, conversation: Conversation, room: int) -> Fitted:
        """Turn the conversation into a prompt; see ``Conversation.fit``."""
        return conversation.fit(self.session.chat_tokens, self.n_ctx, room)

    def end_of(self, tokens: list[int]) -> str:
        """Return the text of a prompt's last few tokens."""
        model = self.session.model
        tail = tokens[-_N_TAIL:]
        return b"".join(model.piece(token, special=True) for token in tail).decode(
            "utf-8", "replace"
        )

    def stream(
        self,
        tokens: list[int],
        settings: ChatSettings,
        on_prefill: Callable[[int, int], None],
    ) -> Answer:
        """Prepare an answer."""
        return self.session.stream(
            tokens, settings.sampling, settings.limits, on_prefill=on_prefill
        )

    def memory_notice(self) -> str:
        """Say what --remember does with this chat."""
        return (
            f"what is said here is kept in {self.session.memory_path}, readable by you alone, "
            "and drafted from in later chats; /remember off keeps no more of it, racer-local "
            "forget removes it all"
        )

    def close(self) -> None:
        """Free the model; a second call does nothing."""
        session, self._session = self._session, None
        if session is not None:
            session.close()
