"""Runs answers and loads models, through a session. Knows no Gradio."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from racer_local.bench.contest import BenchModel
from racer_local.books.store import load_shelf, memory_path
from racer_local.concurrency.call_queue import CallQueue
from racer_local.concurrency.closing import Closing
from racer_local.concurrency.compute_thread import compute_thread
from racer_local.config import DraftConfig, GenerationConfig, ModelConfig, SamplingConfig
from racer_local.decoding.session import Session
from racer_local.errors import BusyError, ConfigError, ModelLoadError, RacerError
from racer_local.gguf.fingerprint import tokenizer_fingerprint
from racer_local.gguf.header import inspect_gguf
from racer_local.gguf.kinds import require_generative
from racer_local.speculation.drafter import StepOutcome
from racer_local.speculation.tree import Source

from .answer import LiveAnswer, Piece, StepView
from .facts import PageFacts, facts_of
from .keeping import Unfinished, book_notices
from .turns import Turn, Turns, join_bounded

__all__ = ["Ask", "PageService", "explain"]

logger = logging.getLogger(__name__)

_MAX_WAITING = 8
# The tree view keeps this many steps of the last answer.
_MAX_STEPS = 2048
# How often an answer is shown anew: with cores to spare, and without.
_TICK_S = 0.1
_TICK_SHARED_S = 0.35
# A browser on the same cores takes time from the model, and more for a long text.
_TICK_PER_TOKEN_S = 0.001
_PLAIN = DraftConfig(mode="off")

Messages = Sequence[dict[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is asked for.

    Attributes:
        messages: the conversation, each with ``role`` and ``content``.
        sampling: how tokens are chosen.
        limits: when to end.
        draft: how to draft.
        is_fresh: start with an empty cache and a drafter that knows nothing.
    """

    messages: Messages
    sampling: SamplingConfig
    limits: GenerationConfig
    draft: DraftConfig
    is_fresh: bool = False


class PageService(Closing):
    """One model, one thread that computes, one queue of those who want it.

    Attributes:
        facts: about the model.
        is_shared: whether others use the model too, so that it cannot be exchanged from here.
    """

    is_shared = False

    # What was asked for, and what fits the model.
    _books: tuple[str, ...] = ()
    _opened_books: tuple[str, ...] = ()
    _remembers = False

    def __init__(
        self,
        config: ModelConfig,
        draft: DraftConfig | None = None,
        on_progress: Callable[[float], None] | None = None,
        *,
        books: Sequence[str] = (),
        remembers: bool = False,
    ) -> None:
        """Load the first model.

        Args:
            config: of the model; others are opened with the same settings.
            draft: how to draft where nothing else is asked for.
            on_progress: called with the loaded share, 0 to 1.
            books: phrase books to draft from, of models with the same tokenizer.
            remembers: keep conversations on this machine, and draft from those kept before.

        Raises:
            RacerError: the model, or a book, cannot be used.
        """
        self._config = config
        self.draft = draft or DraftConfig()
        self._drafting = self.draft
        self._compute = compute_thread()
        # It outlives the session: another model serves the same queue.
        self._calls = calls = CallQueue()
        self._turns = Turns(calls, join_bounded(calls, _MAX_WAITING))
        self._is_closed = False
        self._books = tuple(books)
        self._remembers = remembers
        self._said = Unfinished(lambda tokens: self._model.remember(tokens))
        self._model = self._open(config, books, on_progress)
        self.facts = self._look()

    # --- turns ----------------------------------------------------------------------------

    def take_turn(self, session: str) -> Turn:
        """Join the queue; see ``Turns.take``."""
        return self._turns.take(session)

    def stop(self, session: str) -> None:
        """Stop what a session asked for, within one decode step; others are not touched."""
        self._turns.stop(session)

    def leave(self, session: str) -> None:
        """Stop for good what a session asked for; its conversation is over."""
        self.stop(session)
        if self._remembers and not self._is_closed:
            self._compute.begin(lambda: self._said.end(session))

    def stop_all(self) -> None:
        """Stop everything for good; the program is about to end."""
        self._turns.close()

    @property
    def has_spare_cores(self) -> bool:
        """Whether a browser here can draw without taking time from the model."""
        return (os.cpu_count() or 1) >= self._n_threads + 2

    @property
    def _n_threads(self) -> int:
        return self._model.target.n_threads

    # --- answers --------------------------------------------------------------------------

    def answer(self, ask: Ask, turn: Turn) -> Iterator[LiveAnswer]:
        """Answer, and show the state a few times a second; the last one is complete.

        Whoever leaves early stops the answer. The turn has to have come.
        """
        answer = LiveAnswer()

        def end(future: Future[None]) -> None:
            error = future.exception()
            if error is not None:
                # It was never begun.
                answer.error = explain(error)
            answer.done.set()

        self._submit(turn, lambda: self._run(ask, turn, answer)).add_done_callback(end)
        try:
            tick_s = _TICK_S if self.has_spare_cores else _TICK_SHARED_S
            while not answer.done.wait(tick_s + len(answer.pieces) * _TICK_PER_TOKEN_S):
                yield answer
            yield answer
        finally:
            if not answer.done.is_set():
                turn.cancel()
                answer.done.wait()

    def _submit(self, turn: Turn, function: Callable[[], None]) -> Future[None]:
        """Have a function run on the computing thread; ``turn`` is whose it is."""

        def work() -> None:
            if not turn.call.is_served:
                raise BusyError("it was stopped before it began")
            self._model.within(turn.call, function)

        return self._compute.begin(work)

    def _run(self, ask: Ask, turn: Turn, answer: LiveAnswer) -> None:
        try:
            with self._prepared(ask):
                self._generate(ask, turn, answer)
        except Exception as error:  # noqa: BLE001  # the page shows it
            answer.error = explain(error)
        finally:
            answer.done.set()

    def _generate(self, ask: Ask, turn: Turn, answer: LiveAnswer) -> None:
        model = self._model
        outcomes: list[StepOutcome] = []

        def on_step(outcome: StepOutcome) -> None:
            if len(outcomes) < _MAX_STEPS:
                outcomes.append(outcome)

        def on_prefill(n_done: int, n_all: int) -> None:
            answer.prefill = (n_done, n_all)

        stream = model.stream(
            self._tokens(ask.messages),
            ask.sampling,
            ask.limits,
            on_prefill=on_prefill,
            on_step=on_step,
        )
        answer.stats = stream.stats
        with stream:
            for event in stream:
                if event.token is not None:
                    answer.pieces.append(Piece(event.text, stream.sources[-1], event.step))
                elif event.text:
                    last = answer.pieces[-1].step if answer.pieces else 0
                    answer.pieces.append(Piece(event.text, Source.TARGET, last))
        answer.finish_reason = stream.finish_reason
        if self._remembers and not ask.is_fresh:
            self._said.note(turn.session, stream.prompt, stream.tokens)
        # The first outcome is the prompt's.
        answer.steps.extend(self._view(n, outcome) for n, outcome in enumerate(outcomes) if n)

    @contextlib.contextmanager
    def _prepared(self, ask: Ask) -> Iterator[None]:
        """Draft as asked for, and from an empty cache if that was asked for too."""
        self._draft_as(self._fitted(ask.draft))
        if ask.is_fresh:
            self._model.engine.forget()
        yield

    def _fitted(self, draft: DraftConfig) -> DraftConfig:
        max_nodes = self._model.target.max_nodes
        return replace(draft, budget=min(draft.budget, max_nodes)) if max_nodes else draft

    def _draft_as(self, draft: DraftConfig) -> None:
        if draft != self._drafting:
            # `auto` measures an empty target the first time.
            if draft.mode == "auto" and self._model.engine.cost is None:
                self._model.engine.forget()
            self._model.engine.use(draft)
            self._drafting = draft

    def _tokens(self, messages: Messages) -> list[int]:
        if self._model.model.chat_template is not None:
            return self._model.chat_tokens(messages)
        # A base model goes on with the text as it is.
        return self._model.prompt_tokens("\n\n".join(message["content"] for message in messages))

    def _view(self, number: int, outcome: StepOutcome) -> StepView:
        tree, piece = outcome.tree, self._piece
        return StepView(
            number=number,
            texts=[piece(token) for token in tree.tokens],
            parents=list(tree.parents),
            sources=list(tree.sources),
            probs=[float(prob) for prob in tree.probs],
            accepted=list(outcome.path),
            next_text=piece(outcome.next_token),
        )

    def _piece(self, token: int) -> str:
        model = self._model.model
        return model.piece(token).decode("utf-8", "replace") or model.token_text(token)

    # --- other work on the thread that computes -------------------------------------------

    def work(self, turn: Turn, function: Callable[[BenchModel], None]) -> Future[None]:
        """Hand the model to ``function`` on the computing thread; the turn has to have come.

        The drafter may be changed; it is set anew afterwards.
        """

        def run() -> None:
            try:
                function(self._model)
            finally:
                self._model.engine.forget()
                self._model.engine.use(_PLAIN)
                self._drafting = _PLAIN

        return self._submit(turn, run)

    def load(
        self,
        on_progress: Callable[[float], None],
        *,
        path: Path | None = None,
        is_exact: bool | None = None,
        remembers: bool | None = None,
    ) -> None:
        """Take another model, or open it in another way; if that fails the old one stays.

        Args:
            on_progress: called with the loaded share, 0 to 1.
            path: of the model; None is the one before.
            is_exact: be token-identical to plain decoding; None is as before.
            remembers: keep conversations and draft from those kept before; None is as before.

        Raises:
            RacerError: the file cannot be used, or not in this way.
        """
        config = self._config
        config = replace(
            config,
            path=config.path if path is None else path,
            exact=config.exact if is_exact is None else is_exact,
        )
        # Most bad files are found out here, while the old model still stands.
        require_generative(inspect_gguf(config.path))
        remembers = self._remembers if remembers is None else remembers
        self._swap(config, remembers, on_progress)
        self.facts = self._look()

    def _swap(
        self, config: ModelConfig, remembers: bool, on_progress: Callable[[float], None]
    ) -> None:
        if remembers:
            self._said.end_all()
        # Whoever switches it off wants nothing kept.
        self._said.drop_all()
        before = self._remembers
        # Two models may not fit into memory together.
        self._compute.run(self._model.leave)
        self._remembers = remembers
        try:
            self._model = self._open(config, self._fitting_books(config), on_progress)
        except RacerError as error:
            self._remembers = before
            self._model = self._open(self._config, self._fitting_books(self._config), on_progress)
            raise ModelLoadError(f"{error}; the model before is still in use") from error
        self._config = config

    def _fitting_books(self, config: ModelConfig) -> Sequence[str]:
        """Return the phrase books, or none where the model's tokenizer is another."""
        try:
            load_shelf(self._books, tokenizer_fingerprint(config.path) if self._books else "")
        except ConfigError:
            return ()
        return self._books

    def _open(
        self,
        config: ModelConfig,
        books: Sequence[str],
        on_progress: Callable[[float], None] | None,
    ) -> Session:
        model = Session(
            config,
            self.draft,
            on_progress,
            books=books,
            use_memory=self._remembers,
            calls=self._calls,
        )
        self._opened_books = tuple(books)
        self._drafting = self.draft
        return model

    def _look(self) -> PageFacts:
        model = self._model
        memory = memory_path(tokenizer_fingerprint(self._config.path)) if self._remembers else None
        return facts_of(
            model.model.header,
            n_ctx=model.target.n_ctx,
            max_nodes=model.target.max_nodes,
            is_exact=self._config.exact,
            notices=(*model.notices, *book_notices(self._opened_books, self._books, memory)),
            remembers=self._remembers,
        )

    def close(self) -> None:
        """Stop everything and free the model; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self.stop_all()
        self._compute.run(self._said.end_all)
        self._model.close()


def explain(error: BaseException) -> str:
    """Say in one line what went wrong; the log has the rest of what is our fault."""
    if isinstance(error, RacerError):
        return str(error)
    logger.error("a fault of ours", exc_info=error)
    return f"{type(error).__name__}: {error} (a fault of ours; the terminal shows where)"
