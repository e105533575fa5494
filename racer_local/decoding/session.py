"""The one way to a model: opens it, serves those who call, and streams answers.

Commands, server, pages and ``RacerLlama`` hold a session and translate. It owns the model, its
context, the engine with its drafters, the phrase books, and the queue of calls; all native work
that lasts is done on the compute thread, whichever thread calls.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from racer_local.backend.chain import ChainConfig, ChainSampler
from racer_local.backend.chat import Message, render_chat
from racer_local.backend.model import LlamaModel
from racer_local.books.book_set import BookSet, drafted_from
from racer_local.books.store import load_shelf, memory_path, remember, unused_notices
from racer_local.concurrency.call_queue import Call, CallQueue
from racer_local.concurrency.closing import Closing
from racer_local.concurrency.compute_thread import Computer, compute_thread
from racer_local.concurrency.stepwise import submit_steps
from racer_local.config import DraftConfig, GenerationConfig, ModelConfig, SamplingConfig
from racer_local.decoding.answer import Answer, Criterion, PieceOf
from racer_local.decoding.opening import OpenModel, adopt_model, open_model
from racer_local.decoding.token_stream import TokenStream
from racer_local.errors import ClosedError, ConfigError
from racer_local.gguf.fingerprint import tokenizer_fingerprint
from racer_local.speculation.drafter import StepOutcome
from racer_local.speculation.stats import Stats
from racer_local.speculation.tree import Source, TokenId

__all__ = ["Session"]

_T = TypeVar("_T")


class Session(Closing):
    """An open model, to be called from any thread; calls are served in the order they come.

    Attributes:
        model: weights and vocabulary.
        target: the context.
        engine: the decode loop; it computes on the thread that calls it.
        books: phrase books in use.
        calls: who is served, and who waits.
        compute: where everything is computed.
    """

    def __init__(
        self,
        config: ModelConfig,
        draft: DraftConfig | None = None,
        on_progress: Callable[[float], None] | None = None,
        *,
        books: Sequence[str] = (),
        use_memory: bool = False,
        compute: Computer | None = None,
        calls: CallQueue | None = None,
    ) -> None:
        """Load a model and open a context.

        Args:
            config: model and settings.
            draft: how to draft.
            on_progress: called with the loaded share, 0 to 1, on the compute thread.
            books: phrase books to draft from: names, or paths of ``.npz`` files.
            use_memory: draft from remembered conversations too (see ``remember``).
            compute: where to compute; the process' compute thread if None.
            calls: the queue to serve, which may outlive the session; a new one if None.

        Raises:
            ConfigError: a book is missing, damaged, or of another tokenizer.
            ModelLoadError: the file or the context cannot be opened.
            UnsupportedModelError: the model cannot generate text.
        """
        mark = tokenizer_fingerprint(config.path) if books or use_memory else ""
        # Before the weights: what is wrong with a book is said at once.
        shelf = load_shelf(books, mark, with_memory=use_memory)
        is_stopping = threading.Event()

        def report(share: float) -> None:
            # The caller was interrupted (Ctrl-C) while it waited.
            if is_stopping.is_set():
                raise KeyboardInterrupt
            if on_progress is not None:
                on_progress(share)

        self.calls = CallQueue() if calls is None else calls
        self._start(
            draft, shelf, compute, lambda d: open_model(config, d, shelf, report), is_stopping.set
        )

    @classmethod
    def adopt(
        cls,
        model: LlamaModel,
        ctx: object,
        config: ModelConfig,
        draft: DraftConfig,
        books: BookSet,
        *,
        keeps_all_rows: bool,
    ) -> Session:
        """Use what somebody else opened, and frees after ``close``; see ``adopt_model``."""
        self = cls.__new__(cls)
        self.calls = CallQueue()
        self._start(
            draft,
            books,
            None,
            lambda d: adopt_model(model, ctx, config, d, books, keeps_all_rows=keeps_all_rows),
            None,
        )
        return self

    def _start(
        self,
        draft: DraftConfig | None,
        books: BookSet,
        compute: Computer | None,
        opener: Callable[[DraftConfig], OpenModel],
        on_interrupt: Callable[[], None] | None,
    ) -> None:
        self.books = books
        self.compute = compute_thread() if compute is None else compute
        # The turn in which work on the compute thread streams answers without naming one.
        self._inside: Call | None = None
        draft = draft or DraftConfig()
        self._notices = unused_notices(books, draft.mode)
        self._opened = self.compute.run(lambda: opener(draft), on_interrupt)
        self.model, self.target = self._opened.model, self._opened.target
        self.engine = self._opened.engine
        self.compute.stop_at_exit(self.calls)

    @property
    def notices(self) -> list[str]:
        """What the user should know about this model and these settings."""
        return [*self.target.notices, *self._notices]

    def require_open(self) -> None:
        """Raise ``ClosedError`` if the model was closed."""
        if self.target.is_closed:
            raise ClosedError("the model was closed; open it again to use it")

    # --- text -----------------------------------------------------------------------------

    def prompt_tokens(self, text: str) -> list[TokenId]:
        """Tokenize a raw prompt, with BOS where the model wants one."""
        return self.model.tokenize(text)

    def chat_tokens(self, messages: Sequence[Message]) -> list[TokenId]:
        """Tokenize a conversation through the model's own chat template.

        Control tokens inside a message are read as such, as llama.cpp does.

        Raises:
            ConfigError: the file has no chat template, or it refuses these messages.
        """
        return self.model.tokenize(self.render(messages))

    def render(self, messages: Sequence[Message], **options: Any) -> str:
        """Write a conversation as the model's own chat template does; see ``render_chat``.

        Raises:
            ConfigError: the file has no chat template, or it refuses these messages.
        """
        template = self.model.chat_template
        if template is None:
            raise ConfigError(
                "this model file has no chat template, so it is probably a base model; "
                "use raw completion (--raw)"
            )
        name = self.model.token_text
        bos, eos = name(self.model.bos), name(self.model.eos)
        return render_chat(template, messages, bos_token=bos, eos_token=eos, **options)

    def _piece(self, token: TokenId, before: Sequence[TokenId]) -> bytes:
        return self.model.piece(token)

    # --- answers --------------------------------------------------------------------------

    def stream(
        self,
        prompt: Sequence[TokenId],
        sampling: SamplingConfig | ChainConfig | None = None,
        limits: GenerationConfig | None = None,
        *,
        on_prefill: Callable[[int, int], None] | None = None,
        on_prompt_rows: Callable[[NDArray[np.int32], NDArray[np.float32]], None] | None = None,
        on_step: Callable[[StepOutcome], None] | None = None,
        criteria: Sequence[Criterion] = (),
        piece: PieceOf | None = None,
        errors: Literal["replace", "ignore"] = "replace",
        ahead: bool = True,
        call: Call | None = None,
    ) -> Answer:
        """Answer a tokenized prompt; its turn is waited for when the first event is asked for.

        Args:
            prompt: token ids, at least one.
            sampling: how tokens are chosen; a ``ChainConfig`` for all that llama.cpp can do.
            limits: when to end.
            on_prefill: called with (tokens read, tokens to read), on the compute thread, as are
                the other observers; see ``Engine.generate``.
            on_prompt_rows: called with the logits of every position of the prompt.
            on_step: called with every decode step after it was learned from.
            criteria: end the answer before a token; see ``Answer``.
            piece: gives the bytes of a token after those before it; the model's own if None.
            errors: what becomes of bytes that are no text.
            ahead: compute the next step while the last one's tokens are being used. Faster, but
                the cache may hold tokens that did not come yet.
            call: the turn to answer in, which then goes on; None waits for one of its own, or
                takes that of the work that asks (``run``).

        Raises:
            ClosedError: the model was closed.
            ConfigError: the prompt is empty, or has a token outside the vocabulary.
            ContextFullError: the prompt leaves no room for an answer.
        """
        self.require_open()
        if call is None and self.compute.is_current:
            call = self._inside
        limits = limits or GenerationConfig()
        sampler = None
        if isinstance(sampling, ChainConfig):
            sampler, sampling = ChainSampler(sampling, self.target, prompt), None
        generation = self.engine.generate(
            prompt,
            sampling,
            limits,
            make_sampler=None if sampler is None else lambda: sampler,
            on_prefill=on_prefill,
            on_prompt_rows=on_prompt_rows,
            on_step=on_step,
        )
        stream = TokenStream(
            generation,
            self.target,
            self.compute,
            self.calls.enter if call is None else lambda: call,
            is_own_turn=call is None,
            # A step that nobody takes has to be taken back.
            ahead=ahead and self.target.can_rewind,
        )
        return Answer(
            stream,
            generation.prompt,
            piece or self._piece,
            stops=limits.stop,
            errors=errors,
            sampler=sampler,
            criteria=criteria,
        )

    def cancel(self) -> bool:
        """End the running call within one decode step, or while it reads its prompt.

        From any thread. The answer keeps what it has, with finish reason ``cancelled``.

        Returns:
            False if nothing was running.
        """
        return self.calls.cancel()

    def estimated_speedup(self, stats: Stats) -> float | None:
        """Estimate how much faster an answer came than without drafts.

        Returns:
            The time that plain steps take here over the time that it took; None where that is
            not known, or nothing was decoded.
        """
        cost = self.engine.cost
        n_tokens = stats.n_decoded
        if cost is None or n_tokens < 1 or stats.decode_s <= 0:
            return None
        n_context = stats.n_prompt + n_tokens // 2
        return n_tokens * cost.seconds(1, n_context) / stats.decode_s

    # --- other work -----------------------------------------------------------------------

    def run(self, function: Callable[[], _T]) -> _T:
        """Return what ``function`` returns on the compute thread, in a turn of its own.

        For whatever uses the engine or the target; not from inside an unfinished answer.

        Args:
            function: its error is raised. Answers that it streams belong to this turn.

        Raises:
            ClosedError: the model was closed.
        """
        with self.calls.enter() as call:
            self.require_open()
            return self.compute.run(lambda: self.within(call, function), self.engine.cancel)

    def within(self, call: Call, function: Callable[[], _T]) -> _T:
        """Return what ``function`` returns; its answers belong to a turn. On the compute thread."""
        before, self._inside = self._inside, call
        call.watch(self.engine.cancel)
        try:
            return function()
        finally:
            self._inside = before
            call.watch(None)

    def serve(
        self,
        work: Callable[[Call], Iterator[None]],
        on_end: Callable[[BaseException | None], None],
    ) -> Call:
        """Have ``work`` done on the compute thread in its turn, without waiting for it.

        Args:
            work: gives up the thread wherever it yields; others use the thread in between, but
                not this model. Answers are streamed with the call that it is given.
            on_end: called once at the end, on any thread, with what ``work`` raised, or with None;
                also if the call was cancelled before its turn. It must not raise.

        Raises:
            ClosedError: the model was closed.
        """
        return submit_steps(self.calls, self.compute, work, on_end)

    def use(self, draft: DraftConfig) -> None:
        """Draft differently from the next answer on; what was learned is dropped.

        Raises:
            ConfigError: the model was opened for smaller trees.
        """
        self.run(lambda: self.engine.use(draft))

    def forget(self) -> None:
        """Drop the text in the cache and all that was learned for drafting."""
        self.run(self.engine.forget)

    # --- phrase books ---------------------------------------------------------------------

    def drafted_from(self, answer: Answer) -> list[tuple[str, int]]:
        """List the files that accepted drafts of an answer came from, and how many tokens each.

        File names are those in the books: they may hold anything, and are not fit to be printed
        as they are where a book is a stranger's.
        """
        start = len(answer.prompt)
        positions = [
            start + i for i, source in enumerate(answer.sources) if source is Source.PHRASEBOOK
        ]
        return drafted_from(self.books, [*answer.prompt, *answer.tokens], positions)

    @property
    def memory_path(self) -> Path:
        """The file that ``remember`` writes."""
        return memory_path(tokenizer_fingerprint(self.model.path))

    def remember(self, tokens: Sequence[TokenId]) -> Path:
        """Keep a conversation for later drafts (``use_memory``); returns the file it is in.

        The tokens are the text itself in another writing: call it only for a user who asked for
        it. ``books.store.forget_memory`` removes all that was kept.

        Raises:
            ConfigError: it cannot be written.
        """
        mark = tokenizer_fingerprint(self.model.path)
        return remember(tokens, mark, self.model.n_vocab)

    # --- the end --------------------------------------------------------------------------

    def close(self) -> None:
        """Free context and weights; a running call ends first. A second call does nothing."""
        self.calls.close()
        self.calls.cancel()
        with contextlib.suppress(ClosedError):
            self.compute.run(self.leave)
        self.leave()

    def leave(self) -> None:
        """Like ``close`` where nothing can be running: no waiting, any thread."""
        self._opened.close()
