"""Run a benchmark: every contestant on every prompt, one after the other, in turning order.

A machine that grows slower while a benchmark runs (heat, another program) must not favour
anyone: all answer one prompt before the next one comes, and each is first equally often. Every
answer starts with an empty cache. Decoding is greedy. Layer: above the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from racer_local.bench.contest import BASE, BenchAnswer, BenchModel, Contestant, PeerError
from racer_local.bench.suites import Prompt
from racer_local.speculation.tree import TokenId

__all__ = ["Race", "Round", "needed_context", "write_prompt"]

logger = logging.getLogger(__name__)

_WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One turn of one prompt, answered by everybody.

    Attributes:
        prompt: which one.
        turn: which of its turns, from 0.
        n_prompt: its length in tokens, the conversation so far included.
        answers: by the contestant's name.
    """

    prompt: Prompt
    turn: int
    n_prompt: int
    answers: dict[str, BenchAnswer]


def write_prompt(
    model: BenchModel, asked: Sequence[str], answers: Sequence[str], *, as_chat: bool
) -> list[TokenId]:
    """Tokenize a conversation: the user's messages so far, and the answers between them.

    Args:
        model: whose tokenizer and chat template are used.
        asked: the user's messages.
        answers: one fewer.
        as_chat: through the chat template; else the texts follow each other, a line apart.
    """
    if not as_chat:
        texts = [text for pair in zip(asked, answers, strict=False) for text in pair]
        return model.prompt_tokens("\n\n".join([*texts, asked[-1]]))
    messages = []
    for question, answer in zip(asked, answers, strict=False):
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": answer})
    return model.chat_tokens([*messages, {"role": "user", "content": asked[-1]}])


def needed_context(
    model: BenchModel, prompts: Sequence[Prompt], max_tokens: int, *, as_chat: bool
) -> int:
    """Return a context size in tokens that every conversation fits into with its answers."""
    longest = 0
    for prompt in prompts:
        unanswered = [""] * (len(prompt.turns) - 1)
        n_asked = len(write_prompt(model, prompt.turns, unanswered, as_chat=as_chat))
        longest = max(longest, n_asked + len(prompt.turns) * max_tokens)
    # Answers tokenize a little differently inside a conversation.
    return (longest + 64 + 255) // 256 * 256


class Race:
    """A benchmark that can be stopped at any moment; what is complete stays.

    Attributes:
        rounds: what has been measured, in order.
        skipped: prompts of which a turn did not fit the context.
        dropped: contestants that failed, and why.
    """

    def __init__(
        self,
        model: BenchModel,
        contestants: Sequence[Contestant],
        *,
        as_chat: bool,
        max_tokens: int,
        n_ctx: int,
    ) -> None:
        """Prepare; plain decoding must be among the contestants.

        Args:
            model: writes the prompts.
            contestants: in the order of the report.
            as_chat: ask through the model's chat template.
            max_tokens: most tokens of an answer.
            n_ctx: tokens that everybody's context holds.

        Raises:
            ValueError: there is no plain decoding to compare with.
        """
        if BASE not in (contestant.name for contestant in contestants):
            raise ValueError(f"a benchmark needs {BASE!r} to compare with")
        self._model = model
        self._contestants = list(contestants)
        self._as_chat = as_chat
        self._max_tokens = max_tokens
        self._n_ctx = n_ctx
        self.rounds: list[Round] = []
        self.skipped: list[Prompt] = []
        self.dropped: dict[str, str] = {}

    def run(
        self, prompts: Sequence[Prompt], on_answer: Callable[[int, int], None] | None = None
    ) -> None:
        """Measure; KeyboardInterrupt leaves the complete rounds.

        Args:
            prompts: what to ask.
            on_answer: called with (answers done, answers in all), failed ones counted as done.
        """
        n_all = len(self._contestants) * sum(len(prompt.turns) for prompt in prompts)
        tell = on_answer or (lambda done, total: None)
        self._warm_up(prompts)
        for prompt in prompts:
            self._play(prompt, lambda done: tell(done, n_all))

    def _play(self, prompt: Prompt, tell: Callable[[int], None]) -> None:
        """Have every turn of one prompt answered by everybody."""
        heard: list[str] = []
        for turn in range(len(prompt.turns)):
            asked = prompt.turns[: turn + 1]
            tokens = write_prompt(self._model, asked, heard, as_chat=self._as_chat)
            if len(tokens) + self._max_tokens > self._n_ctx:
                logger.info("a prompt of %d tokens does not fit the context", len(tokens))
                self.skipped.append(prompt)
                return
            answers: dict[str, BenchAnswer] = {}
            n_before = len(self.rounds) * len(self._contestants)
            for number, contestant in enumerate(self._order(), start=1):
                answer = self._ask(contestant, tokens, self._max_tokens)
                if answer is not None:
                    answers[contestant.name] = answer
                tell(n_before + number)
            done = Round(prompt=prompt, turn=turn, n_prompt=len(tokens), answers=answers)
            self.rounds.append(done)
            # All go on from the same text: the answer of plain decoding.
            heard.append(answers[BASE].text)

    def _order(self) -> list[Contestant]:
        first = len(self.rounds) % len(self._contestants)
        return [*self._contestants[first:], *self._contestants[:first]]

    def _ask(
        self, contestant: Contestant, tokens: Sequence[TokenId], max_tokens: int
    ) -> BenchAnswer | None:
        if contestant.name in self.dropped:
            return None
        try:
            return contestant.answer(tokens, max_tokens)
        except PeerError as error:
            logger.warning("%s drops out: %s", contestant.name, error)
            self.dropped[contestant.name] = str(error)
            return None

    def _warm_up(self, prompts: Sequence[Prompt]) -> None:
        """Let everybody answer briefly once: first calls are slow for all kinds of reasons."""
        for prompt in prompts:
            tokens = write_prompt(self._model, prompt.turns[:1], [], as_chat=self._as_chat)
            if len(tokens) + _WARM_UP_TOKENS <= self._n_ctx:
                for contestant in self._contestants:
                    self._ask(contestant, tokens, _WARM_UP_TOKENS)
                return
