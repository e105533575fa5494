"""Cost-aware drafting: propose exactly what pays on this machine, for this text. Layer: pure.

For every place it collects candidates from earlier occurrences of the last tokens
(``occurrences``) and from Copy-Logit rows (``candidates``), estimates how likely each is taken
(``estimate``), grows the likeliest tree and cuts it where expected tokens per time are largest
(``planner``), and watches what it really brings (``guard``). What a step of n tokens takes is
told by a ``CostModel``.

Estimates of the places of an accepted path are taught before the rows of that path are stored:
with what was known when the draft was made. The other order shows the estimates the answer,
makes all of them too high, and drafts too much.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from racer_local.books.book_set import BookPlace, BookSet
from racer_local.books.phrase_book import DEPTH
from racer_local.config import DraftConfig
from racer_local.drafting.auto.candidates import PlaceRows, describe
from racer_local.drafting.auto.estimate import N_HITS, Estimator
from racer_local.drafting.auto.guard import Guard
from racer_local.drafting.auto.occurrences import OccurrenceIndex, Occurrences
from racer_local.drafting.auto.place import Place
from racer_local.drafting.auto.planner import StepTimes, plan
from racer_local.drafting.auto.row_memory import RowMemory
from racer_local.drafting.auto.row_store import MIN_PROB, RowPlaces, RowStore, row_places
from racer_local.drafting.racer.copy_logit import last_places
from racer_local.measuring.cost import DEFAULT_CURVE, CostModel
from racer_local.speculation.drafter import Rows, StepOutcome
from racer_local.speculation.tree import ROOT, DraftTree, NodeId, Source, TokenId

__all__ = ["AutoDrafter"]

# Times are looked up again when the context has grown by so much.
_CONTEXT_BLOCK = 256
# Weight of the past in the share of right first guesses, per emitted token.
_HIT_MEMORY = 0.85
# Steps longer than so many times what was predicted, or than plain steps for all their tokens,
# count as that long.
_MAX_DELAY = 2.0
# A text that repeats so many tokens is worth waking up for.
_ROUSING_MATCH = 8
# Where checking is dear and drafting takes more than this share of plain decoding, it leaves out
# what brings least there: a place whose last two tokens are new to the text is neither described
# nor drafted from, and no rows are read while first guesses are right less often than this.
_DEAR_OVERHEAD, _LOW_HITS = 0.01, 0.2
# Books whose first guesses were right less often than this lately are asked at every fourth place
# only: a fifth fewer look-ups over many texts, and nothing lost in replay.
_DOUBTFUL_HITS, _DOUBT_STRIDE = 0.2, 4
# Where a step of eight tokens takes less than this many times a single one, drafts are wide enough
# for the rows of a whole prompt.
_CHEAP_TOKENS, _CHEAP_RATIO = 8, 2.0


class AutoDrafter:
    """Drafts what pays.

    Attributes:
        cost: what a decode step takes; learns from ``observe_step``.
        estimator: acceptance estimates; kept when a new text begins.
        guard: realised gain.
    """

    def __init__(
        self,
        config: DraftConfig,
        cost: CostModel | None = None,
        memory: RowMemory | None = None,
        estimator: Estimator | None = None,
        books: BookSet | None = None,
    ) -> None:
        """Start without a text.

        Args:
            config: row width and, as an upper bound, the budget.
            cost: what a step takes; without one a guess is used until steps are observed.
            memory: rows of other texts.
            estimator: estimates to go on with; None starts from the shipped ones.
            books: phrase books to draft from as well.
        """
        self._breadth = config.breadth
        n_max = config.budget + 1
        if cost is None:
            points = [(n, DEFAULT_CURVE(n)) for n in range(1, max(2, n_max) + 1)]
            cost = CostModel(points, n_max=n_max, is_guess=True)
        self.cost = cost
        self.estimator = estimator or Estimator()
        self.guard = Guard()
        self._memory = memory
        self._books = books if books is not None and books.books else None
        self._index = OccurrenceIndex()
        self._rows = RowStore()
        self._steps_key: tuple[int, int, int] | None = None
        self._steps = StepTimes([1.0, 1.0])
        self._is_cheap = False
        self.begin()

    @property
    def row_width(self) -> int:
        """Want a few tokens of each row; none while drafting sleeps, or saves itself the work."""
        if self.guard.is_asleep or (self._hits < _LOW_HITS and self._is_saving()):
            return 0
        return self._breadth

    def begin(self) -> None:
        """Forget the text; what was learned about estimates and costs stays."""
        self._index.clear()
        self._rows.clear()
        self._root: Place | None = None
        self._answer_start = 0
        # Tokens in the KV cache; not the text learned from, which may hold other texts too.
        self._n_context = 0
        self._hits = 0.5
        self._book_hits = 0.5
        # The row of the place before the root, and which place it is of.
        self._last_row: tuple[int, RowPlaces] | None = None
        self._last_places: RowPlaces = {}
        self._step_time: tuple[float, float] | None = None
        self.guard.reset()

    def begin_from(self, other: AutoDrafter, tokens: Sequence[TokenId]) -> None:
        """Begin with the first tokens of another drafter's text, and the rows it learned there."""
        n_dropped = other._index.start
        is_known = n_dropped <= len(tokens)
        rest = other._index.text[len(tokens) - n_dropped :] if is_known else ()
        rows = other._rows.part(tokens, rest) if is_known else RowStore()
        self.begin()
        self._rows = rows
        self.feed(tokens)

    def feed(self, tokens: Sequence[TokenId]) -> None:
        """Append given tokens.

        Raises:
            ValueError: if a token is negative.
        """
        if len(tokens) and min(tokens) < 0:
            raise ValueError(f"token {min(tokens)} is negative; token ids start at 0")
        self._append(tokens)
        self._answer_start = self._index.n_tokens

    def _append(self, tokens: Sequence[TokenId]) -> None:
        for token in tokens:
            self._index.append(token)
        self._n_context += len(tokens)
        self._root = None

    def set_context(self, n_context: int) -> None:
        """Say how many tokens the steps to come attend to; what they take depends on it."""
        self._n_context = n_context

    @property
    def min_prob(self) -> float:
        """Tokens below this probability are no candidates."""
        return MIN_PROB

    def wanted_rows(self, tokens: Sequence[TokenId]) -> NDArray[np.int32]:
        """Want the row of the last place of every pair of tokens, as far as there is room.

        Where checking tokens is dear, only of pairs that the text has more than once: the others
        are seldom met again, and bring less there than it takes to compute their logits.
        """
        places = last_places(tokens, by_pair=True)[-self._rows.capacity :]
        if self._is_checking_cheap():
            return places
        is_repeated = self._index.is_repeated
        repeated = [i for i in places.tolist() if i and is_repeated(tokens[i - 1], tokens[i])]
        return np.array(repeated, np.int32)

    def _is_checking_cheap(self) -> bool:
        self._step_times()
        return self._is_cheap

    def _is_saving(self) -> bool:
        return self.guard.overhead_share > _DEAR_OVERHEAD and not self._is_checking_cheap()

    def _leaves_out_root(self) -> bool:
        """Whether the place after the text is not worth a look."""
        if self._books is not None or self._memory is not None or self._index.match_length():
            return False
        return self._is_saving()

    def learn(self, rows: Rows) -> None:
        """Store rows of the given text; of places no longer known, none."""
        index = self._index
        places = rows.index - index.start
        known = np.flatnonzero((places >= 0) & (places < len(index.text)))
        text = index.text
        pairs = [(text[i - 1] if i else -1, text[i]) for i in places[known].tolist()]
        self._rows.learn(pairs, rows.ids[known], rows.probs[known])
        if len(known):
            latest = int(known[np.argmax(places[known])])
            self._keep_last(int(rows.index[latest]), rows, latest)
        self._root = None

    def _keep_last(self, position: int, rows: Rows, place: int) -> None:
        self._last_row = position, row_places(rows.ids[place].tolist(), rows.probs[place].tolist())

    # ---------------------------------------------------------------- drafting

    def draft(self, budget: int) -> DraftTree:
        """Guess the tree that pays best, at most ``budget`` nodes besides the root.

        Raises:
            ValueError: if the text is empty.
        """
        text = self._index.text
        if not text:
            raise ValueError("nothing to draft from: the text is empty")
        is_idle = self.guard.is_asleep or self.cost.wants_plain
        if budget <= 0 or is_idle or self._leaves_out_root():
            return DraftTree(text[-1])
        places: list[Place] = []

        def expand(tree: DraftTree, node: NodeId) -> list[tuple[float, TokenId, Source]]:
            # Nodes are expanded in the order in which they were added, but not all of them.
            while len(places) < len(tree):
                new = len(places)
                if new == ROOT:
                    places.append(self._root_place())
                else:
                    parent = tree.parents[new]
                    places.append(self._below(places[parent], tree.tokens[new]))
            place = places[node]
            found = place.candidates
            credit = place.credit
            return [
                (
                    prob,
                    token,
                    Source.PHRASEBOOK
                    if token in credit
                    else Source.RETRIEVAL
                    if i < found.n_retrieved
                    else Source.LOGITS,
                )
                for i, (prob, token) in enumerate(zip(place.probs, found.tokens, strict=True))
            ]

        return plan(text[-1], budget, self._step_times(), expand, self.guard.margin)

    def _step_times(self) -> StepTimes:
        n_context = self._n_context
        key = (self.cost.version, n_context // _CONTEXT_BLOCK, self.cost.n_max)
        if key != self._steps_key:
            self._steps = StepTimes(self.cost.times(self.cost.n_max, n_context))
            plain = self.cost.seconds(1, n_context)
            self._is_cheap = self.cost.seconds(_CHEAP_TOKENS, n_context) < _CHEAP_RATIO * plain
            self._steps_key = key
        return self._steps

    def _root_place(self) -> Place:
        if self._root is None:
            text = self._index.text
            self._last_places = {}
            if self._last_row is not None and self._last_row[0] == self._index.n_tokens - 2:
                self._last_places = self._last_row[1]
            before = text[-2] if len(text) > 1 else -1
            self._root = self._place(self._index.latest(), before, text[-1], self._ask_books())
        return self._root

    def _ask_books(self) -> BookPlace | None:
        if self._books is None:
            return None
        if self._book_hits < _DOUBTFUL_HITS and self._index.n_tokens % _DOUBT_STRIDE:
            return None
        return self._books.at(self._index.text[-DEPTH:])

    def _below(self, place: Place, token: TokenId) -> Place:
        below = place.below.get(token)
        if below is None:
            found = self._index.advance(place.found, place.token, token)
            book = None if place.book is None else place.book.below(token)
            below = place.below[token] = self._place(found, place.token, token, book)
        return below

    def _place(
        self, found: Occurrences, before: TokenId, token: TokenId, book: BookPlace | None
    ) -> Place:
        two, one = self._rows.two(before, token), self._rows.one(token)
        remembered: RowPlaces | None = None
        asks_memory = self._memory is not None and two is None
        if asks_memory and self._memory is not None:
            row = self._memory.two(before, token)
            if row is None and one is None:
                row = self._memory.one(token)
            remembered = row_places(*row) if row is not None else None
        rows = PlaceRows(
            two=two,
            one=one,
            old=self._rows.old(token),
            memory=remembered,
            has_memory=asks_memory,
            last=self._last_places,
        )
        hit_bin = min(N_HITS - 1, int(self._hits * N_HITS))
        start = self._answer_start - self._index.start
        candidates = describe(self._index, found, rows, hit_bin, start)
        return Place(token, found, candidates, self.estimator, book, self._book_hits)

    # ---------------------------------------------------------------- learning

    def observe_step(
        self, n_tokens: int, n_context: int, seconds: float, overhead_s: float = 0.0
    ) -> None:
        """Take note of what the decode step took; call it before ``accept``.

        Args:
            n_tokens: decoded tokens, the root included.
            n_context: tokens in the KV cache before the step.
            seconds: time of the target's pass.
            overhead_s: time spent on drafting and learning since the step before.
        """
        self.cost.observe(n_tokens, n_context, seconds)
        self._step_time = seconds, overhead_s

    def useful_nodes(self, path: Sequence[NodeId]) -> Sequence[NodeId]:
        """Want rows of the accepted path: a rejected node's gains less than reading it costs."""
        return path

    def accept(self, outcome: StepOutcome) -> None:
        """Learn from a step, then append the accepted tokens and the next one."""
        tree, path = outcome.tree, outcome.path
        tokens = [tree.tokens[node] for node in path[1:]]
        tokens.append(outcome.next_token)
        if not self.guard.is_asleep and self._index.text:
            self._learn_estimates(tree, tokens)
            if outcome.rows is not None:
                self._learn_rows(outcome, outcome.rows)
        self._tell_guard(len(tree), len(path))
        self._append(tokens)
        if self.guard.is_asleep and self._index.match_length() >= _ROUSING_MATCH:
            self.guard.rouse()

    def _tell_guard(self, n_tokens: int, n_emitted: int) -> None:
        n_context = self._n_context
        predicted = self.cost.seconds(n_tokens, n_context)
        taken, overhead = self._step_time or (predicted, 0.0)
        self._step_time = None
        plain = self.cost.seconds(1, n_context)
        # A single step that was held up says nothing about drafting. The prediction alone is no
        # measure of that: where it is wrong, the guard is what notices.
        taken = min(taken, _MAX_DELAY * max(predicted, n_tokens * plain))
        self.guard.observe(n_tokens - 1, n_emitted, taken, plain, min(overhead, plain))

    def _learn_estimates(self, tree: DraftTree, tokens: Sequence[TokenId]) -> None:
        if not tree.n_drafted and self._root is None and self._leaves_out_root():
            self._hits *= _HIT_MEMORY
            return
        place = self._root_place()
        node: NodeId | None = ROOT
        for i, token in enumerate(tokens):
            if i:
                place = self._below(place, tokens[i - 1])
                node = tree.child(node, tokens[i - 1]) if node is not None else None
            found, estimates = place.candidates, place.estimates
            taken = found.tokens.index(token) if token in found.tokens else -1
            if node is not None:
                for child in tree.children(node):
                    drafted = tree.tokens[child]
                    if drafted in found.tokens:
                        index = found.tokens.index(drafted)
                        is_taken = drafted == token
                        self.estimator.count(found.cells[index], estimates[index], is_taken)
            self._hits *= _HIT_MEMORY
            if taken >= 0 and estimates[taken] == max(estimates):
                self._hits += 1.0 - _HIT_MEMORY
            if place.book is not None and place.book.guesses:
                is_hit = place.book.guesses[0].token == token
                self._book_hits += (is_hit - self._book_hits) * (1.0 - _HIT_MEMORY)
            self.estimator.learn(found.cells, estimates, taken)

    def _learn_rows(self, outcome: StepOutcome, rows: Rows) -> None:
        tree, path, text = outcome.tree, outcome.path, self._index.text
        nodes = rows.index.tolist()
        accepted = set(path)
        # Accepted rows last: where a token occurs twice, the row of the real text stays.
        order = sorted(range(len(nodes)), key=lambda i: nodes[i] in accepted)
        before_root = text[-2] if len(text) > 1 else -1
        pairs = []
        for i in order:
            parent = tree.parents[nodes[i]]
            before = tree.tokens[parent] if parent >= 0 else before_root
            pairs.append((before, tree.tokens[nodes[i]]))
            if nodes[i] == path[-1]:
                self._keep_last(self._index.n_tokens + len(path) - 2, rows, i)
        self._rows.learn(pairs, rows.ids[order], rows.probs[order])

    def size_bytes(self) -> int:
        """Estimate the memory held."""
        parts = self._index.size_bytes() + self._rows.size_bytes()
        memory = 0 if self._memory is None else self._memory.size_bytes()
        books = 0 if self._books is None else self._books.size_bytes()
        return parts + memory + books + 32 * len(self.estimator.weights)
