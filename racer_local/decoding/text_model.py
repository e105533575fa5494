"""Text in, text out: a model, its target and an engine under one roof.

What the command line, server and user interface talk to. Thin: tokenizing and templates before
the engine, characters and stop strings after it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from racer_local.backend.chat import Message, render_chat
from racer_local.backend.model import LlamaModel
from racer_local.backend.native import runtime_version
from racer_local.backend.target import LlamaTarget
from racer_local.books.book_set import Shelf, drafted_from
from racer_local.books.store import load_shelf, memory_path, remember, unused_notices
from racer_local.concurrency.closing import Closing
from racer_local.config import DraftConfig, GenerationConfig, ModelConfig, SamplingConfig
from racer_local.decoding.engine import Engine, FinishReason, Generation, TokenEvent
from racer_local.decoding.text import StopScanner, TextDecoder
from racer_local.drafting.auto.row_memory_store import load_row_memory
from racer_local.errors import ConfigError
from racer_local.gguf.fingerprint import tokenizer_fingerprint
from racer_local.measuring.cost_store import CostStore
from racer_local.measuring.exactness import find_exact_rows
from racer_local.speculation.drafter import StepOutcome
from racer_local.speculation.stats import Stats
from racer_local.speculation.tree import Source, TokenId

__all__ = ["TextEvent", "TextModel", "TextStream"]


@dataclass(frozen=True, slots=True)
class TextEvent:
    """Text that can be shown, and the token that completed it.

    Attributes:
        text: whole characters; '' while a character or a possible stop string is unfinished.
        token: the token, with its source; None for text held back until the end.
    """

    text: str
    token: TokenEvent | None


class TextStream(Closing, Iterator[TextEvent]):
    """A running answer: iterate for text; close, or leave a ``with`` block, to end early.

    Attributes:
        prompt: ids of the prompt.
        tokens: ids generated so far.
        sources: who proposed each of them.
        text: text shown so far.
    """

    def __init__(self, model: LlamaModel, generation: Generation, stops: Sequence[str]) -> None:
        """Follow a generation; nothing runs before the first text is asked for."""
        self._model = model
        self._generation = generation
        self._stops = StopScanner(stops)
        self._events = self._run()
        self._stopped_by_text = False
        self.prompt = generation.prompt
        self.tokens: list[TokenId] = []
        self.sources: list[Source] = []
        self.text = ""

    @property
    def stats(self) -> Stats:
        """The generation's counters."""
        return self._generation.stats

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended; None while it runs."""
        return "stop" if self._stopped_by_text else self._generation.finish_reason

    def _run(self) -> Generator[TextEvent, None, None]:
        decoder = TextDecoder()
        with self._generation:
            for event in self._generation:
                self.tokens.append(event.token)
                self.sources.append(event.source)
                shown = self._stops.push(decoder.push(self._model.piece(event.token)))
                self.text += shown
                if self._stops.is_stopped:
                    self._stopped_by_text = True
                    self._generation.close()
                    yield TextEvent(shown, event)
                    return
                yield TextEvent(shown, event)
        rest = self._stops.flush()
        if rest:
            self.text += rest
            yield TextEvent(rest, None)

    def __next__(self) -> TextEvent:
        """Return the next text."""
        return next(self._events)

    def close(self) -> None:
        """End the answer; the model is free for the next one."""
        self._events.close()
        self._generation.close()


class TextModel(Closing):
    """A loaded model that answers text.

    Attributes:
        model: weights and vocabulary.
        target: the context.
        engine: the decode loop.
        books: phrase books in use.
    """

    def __init__(
        self,
        config: ModelConfig,
        draft: DraftConfig | None = None,
        on_progress: Callable[[float], None] | None = None,
        *,
        books: Sequence[str] = (),
        use_memory: bool = False,
    ) -> None:
        """Load the model and open a context.

        Args:
            config: model and settings.
            draft: how to draft.
            on_progress: is told the loaded share, 0 to 1.
            books: phrase books to draft from: names, or paths of ``.npz`` files.
            use_memory: draft from remembered conversations too (see ``remember``).

        Raises:
            ConfigError: a book is missing, damaged, or of another tokenizer.
            ModelLoadError: the file or the context cannot be opened.
            UnsupportedModelError: the model cannot generate text.
        """
        mark = tokenizer_fingerprint(config.path) if books or use_memory else ""
        # Before the weights: what is wrong with a book is said at once.
        self.books = load_shelf(books, mark, with_memory=use_memory)
        self.model = LlamaModel(config, on_progress)
        try:
            for book in self.books.books:
                if book.n_vocab != self.model.n_vocab:
                    raise ConfigError("a phrase book has another vocabulary than the model")
            self.target = LlamaTarget(self.model, config)
            self._costs: CostStore | None
            self._costs = costs = CostStore(
                config, self.target.kv_type, self.target.n_threads, runtime_version()
            )
            exact_rows = find_exact_rows(self.target, costs)
            memory = load_row_memory(config.path) if self.target.max_nodes else None
            self.engine = Engine(
                self.target,
                draft,
                cost=costs.load(),
                row_memory=memory,
                exact_rows=exact_rows,
                books=self.books,
            )
            self._notices = unused_notices(self.books, (draft or DraftConfig()).mode)
        except BaseException:
            self.model.close()
            raise

    @classmethod
    def over(
        cls, model: LlamaModel, target: LlamaTarget, engine: Engine, books: Shelf
    ) -> TextModel:
        """Answer with what somebody else opened, and closes."""
        self = cls.__new__(cls)
        self.model, self.target, self.engine, self.books = model, target, engine, books
        self._costs = None
        self._notices = []
        return self

    @property
    def notices(self) -> list[str]:
        """What the user should know about this model and these settings."""
        return [*self.target.notices, *self._notices]

    def prompt_tokens(self, text: str) -> list[TokenId]:
        """Tokenize a raw prompt, with BOS where the model wants one."""
        return self.model.tokenize(text)

    def chat_tokens(self, messages: Sequence[Message]) -> list[TokenId]:
        """Tokenize a conversation through the model's own chat template.

        Control tokens inside a message are read as such, as llama.cpp does.

        Raises:
            ConfigError: the file has no chat template, or it refuses these messages.
        """
        template = self.model.chat_template
        if template is None:
            raise ConfigError(
                "this model file has no chat template, so it is probably a base model; "
                "use raw completion (--raw)"
            )
        bos = self.model.token_text(self.model.bos)
        text = render_chat(
            template, messages, bos_token=bos, eos_token=self.model.token_text(self.model.eos)
        )
        return self.model.tokenize(text)

    def stream(
        self,
        prompt: Sequence[TokenId],
        sampling: SamplingConfig | None = None,
        limits: GenerationConfig | None = None,
        *,
        on_prefill: Callable[[int, int], None] | None = None,
        on_step: Callable[[StepOutcome], None] | None = None,
    ) -> TextStream:
        """Answer a tokenized prompt; see ``Engine.generate`` for arguments and errors."""
        limits = limits or GenerationConfig()
        generation = self.engine.generate(
            prompt, sampling, limits, on_prefill=on_prefill, on_step=on_step
        )
        return TextStream(self.model, generation, limits.stop)

    def drafted_from(self, stream: TextStream) -> list[tuple[str, int]]:
        """List the files that accepted drafts of an answer came from, and how many tokens each.

        File names are those in the books: they may hold anything, and are not fit to be printed
        as they are where a book is a stranger's.
        """
        start = len(stream.prompt)
        text = [*stream.prompt, *stream.tokens]
        places = [
            start + i for i, source in enumerate(stream.sources) if source is Source.PHRASEBOOK
        ]
        return drafted_from(self.books, text, places)

    @property
    def memory_path(self) -> Path:
        """The file that ``remember`` writes."""
        return memory_path(tokenizer_fingerprint(self.model.path))

    def remember(self, tokens: Sequence[TokenId]) -> Path:
        """Keep a conversation for later drafts (``use_memory``); returns the file it is in.

        The tokens are the text itself in another writing: call it only for a user who asked for
        it. ``book_store.forget_memory`` removes all that was kept.

        Raises:
            ConfigError: it cannot be written.
        """
        mark = tokenizer_fingerprint(self.model.path)
        return remember(tokens, mark, self.model.n_vocab)

    def cancel(self) -> None:
        """End the running answer within one decode step; from any thread."""
        self.engine.cancel()

    def close(self) -> None:
        """Free context and weights; a second call does nothing."""
        if self._costs is None:
            return
        if not self.target.is_closed and self.engine.cost is not None:
            self._costs.save(self.engine.cost)
        self.target.close()
        self.model.close()
