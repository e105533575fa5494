"""What is kept of the texts of one slot, and which of them a new prompt goes on with.

The slot's cache holds one text. A side question would evict a long chat, and its next turn would
have to read and learn everything again. So everything that is kept of a text is one object, found
again by one rule:

    A prompt goes on with the text that has the longest beginning in common with it.

Of that text the rest is dropped where it is small (an answer that was left in the middle, say).
Where much would be lost, the text is kept as it is and another one branches off, which knows of
the common part what the first one knows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from racer_local.drafting.guarded_drafter import GuardedDrafter
from racer_local.speculation.prefix import common_prefix
from racer_local.speculation.target import Slot
from racer_local.speculation.tree import TokenId

__all__ = ["Conversation", "Conversations"]

# Fewer tokens are read again sooner than a state is copied twice.
_MIN_TOKENS = 32
# A text is kept beside the one that branches off if at least this share of it would be lost.
_MIN_LOST_SHARE = 1 / 8
# What is in the cache is taken unless another text has so many more tokens in common.
_CLEARLY_BETTER = 16


class Conversation:
    """What is kept of one text.

    Attributes:
        tokens: the text, as far as the target has read it.
        state: its cells, where they are not in the cache and were saved; else empty.
        drafter: with what it learned from the text; None where nothing was drafted for it yet.
    """

    __slots__ = ("drafter", "state", "tokens")

    def __init__(self) -> None:
        """Begin without a text."""
        self.tokens: list[TokenId] = []
        self.state: bytes | bytearray = b""
        self.drafter: GuardedDrafter | None = None


class Conversations:
    """The conversations of one slot, under limits of their number and of the states' bytes."""

    def __init__(
        self, slot: Slot, make_drafter: Callable[[], GuardedDrafter], n_saved: int, max_bytes: int
    ) -> None:
        """Begin with an empty text.

        Args:
            slot: holds the text of the current conversation.
            make_drafter: makes a drafter that knows no text, or returns the one for all texts.
            n_saved: most conversations kept besides the current one.
            max_bytes: most bytes of their saved states.
        """
        self._slot = slot
        self._make_drafter = make_drafter
        self._n_saved = n_saved
        self._max_bytes = max_bytes
        # Most recently used last; the last one is the current one, whose text is in the slot.
        self._kept = [Conversation()]

    @property
    def drafter(self) -> GuardedDrafter:
        """The drafter of the current conversation."""
        current = self._kept[-1]
        if current.drafter is None:
            current.drafter = self._make_drafter()
        return current.drafter

    def enter(self, prompt: list[TokenId]) -> None:
        """Make the conversation that ``prompt`` goes on with the current one.

        The slot holds what that has in common with the prompt, but not the prompt's last token.
        """
        here = self._kept[-1]
        # Others may have read something into the slot, or taken it back.
        self._slot.resync()
        here.tokens = list(self._slot.tokens)
        n_here, found, n_found = self._find(here, prompt)
        is_loaded = found is not here and bool(found.state)
        if self._is_much(here, 0 if is_loaded else n_here):
            here.state = self._slot.save_state(self._max_bytes)
        elif found is not here:
            self._kept.remove(here)
        if is_loaded:
            n_here = n_found
            if not self._slot.load_state(found.tokens, found.state):
                found.state = b""
        self._slot.rewind(min(n_here, len(prompt) - 1, len(self._slot.tokens)))
        if self._is_much(found, n_found):
            found = self._branch(found, prompt)
        else:
            found.state = b""
            self._kept.remove(found)
        self._kept.append(found)
        self._drop_oldest()

    def _find(self, here: Conversation, prompt: list[TokenId]) -> tuple[int, Conversation, int]:
        """Return what the current text shares with a prompt, which text shares most, and that."""
        n_here = self._shared(here, prompt)
        found, n_found = here, n_here
        for other in self._kept[-2::-1]:
            n_other = self._shared(other, prompt)
            if n_other > max(n_found, n_here + _CLEARLY_BETTER):
                found, n_found = other, n_other
        return n_here, found, n_found

    def _shared(self, conversation: Conversation, prompt: list[TokenId]) -> int:
        n = common_prefix(conversation.tokens, prompt)
        is_usable = self._slot.can_rewind or n == len(conversation.tokens)
        return n if is_usable else 0

    def _is_much(self, conversation: Conversation, n_kept: int) -> bool:
        """Whether too much would be lost of a text if only so many tokens were kept."""
        n_tokens = len(conversation.tokens)
        return bool(self._n_saved) and n_tokens - n_kept >= max(
            _MIN_TOKENS, _MIN_LOST_SHARE * n_tokens
        )

    def _branch(self, old: Conversation, prompt: list[TokenId]) -> Conversation:
        new = Conversation()
        if old.drafter is not None:
            new.drafter = self._make_drafter()
            if new.drafter is not old.drafter:
                new.drafter.begin_from(old.drafter, prompt)
        return new

    def _drop_oldest(self) -> None:
        del self._kept[: -1 - self._n_saved]
        n_bytes = sum(len(conversation.state) for conversation in self._kept)
        for conversation in self._kept:
            if n_bytes <= self._max_bytes:
                break
            n_bytes -= len(conversation.state)
            conversation.state = b""

    def forget(self) -> None:
        """Drop all texts and all that was learned from them."""
        del self._kept[:-1]
        self._slot.rewind(0)
        if self._kept[-1].drafter is not None:
            self._kept[-1].drafter.forget()

    def use(self, make_drafter: Callable[[], GuardedDrafter]) -> None:
        """Have other drafters from now on; what was learned so far is dropped."""
        self._make_drafter = make_drafter
        for conversation in self._kept:
            conversation.drafter = None

    @contextlib.contextmanager
    def kept_drafters(self) -> Iterator[None]:
        """Have the present drafters again at the end, whatever ``use`` does in between."""
        make_drafter = self._make_drafter
        before = [(conversation, conversation.drafter) for conversation in self._kept]
        try:
            yield
        finally:
            self.use(make_drafter)
            for conversation, drafter in before:
                conversation.drafter = drafter

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Begin with an empty slot and nothing learned, and keep nothing of it.

        What there was before is there again at the end, the current text among the saved ones.
        """
        here, before = self._kept[-1], (self._kept, self._n_saved, self._make_drafter)
        here.tokens = list(self._slot.tokens)
        if self._is_much(here, 0):
            here.state = self._slot.save_state(self._max_bytes)
        self._kept, self._n_saved = [Conversation()], 0
        try:
            self._slot.rewind(0)
            yield
        finally:
            self._kept, self._n_saved, self._make_drafter = before
            self._slot.rewind(0)
            if here.state:
                self._kept.append(Conversation())
                self._drop_oldest()
