"""Drive a drafter over recorded text and count what it would have saved. Layer: pure.

No model runs: the recorded token is the target's choice. Every record starts with a fresh text.
The drafter first gets the prompt with all its rows; at each step it drafts, the tree is walked
against the record, and the drafter gets the rows of the root and of the accepted nodes. Rejected
nodes were never decoded in the recording, so live decoding teaches a little more than replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypedDict

import numpy as np

from racer_local.bench.reliability import Reliability, ReliabilityBin
from racer_local.bench.trace import Record, Trace
from racer_local.drafting.auto.drafter import AutoDrafter
from racer_local.errors import ConfigError, TraceError
from racer_local.measuring.cost import CostCurve, read_cost_curve
from racer_local.speculation.acceptance import verify
from racer_local.speculation.drafter import Drafter, Rows, StepOutcome
from racer_local.speculation.tree import DraftTree, NodeId, TokenId

__all__ = ["CostCurve", "Result", "Summary", "prime", "read_cost_curve", "replay", "replay_step"]


class Summary(TypedDict):
    """What a replay of one category came to.

    Attributes:
        tokens: emitted tokens.
        steps: decode steps they took.
        mean_accepted_tokens: tokens per step; 1.0 is plain decoding.
        nodes_per_step: decoded nodes per step, the root included.
        simulated_speedup: tokens over the summed relative cost of the steps; None without a
            cost curve.
        reliability: estimates against outcomes per bin; empty where a drafter makes none.
    """

    tokens: int
    steps: int
    mean_accepted_tokens: float
    nodes_per_step: float
    simulated_speedup: float | None
    reliability: list[ReliabilityBin]


Result: TypeAlias = dict[str, Summary]


class _Tally:
    __slots__ = ("cost", "nodes", "reliability", "steps", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self.steps = 0
        self.nodes = 0
        self.cost = 0.0
        self.reliability = Reliability()

    def summary(self, has_cost: bool) -> Summary:
        steps = max(self.steps, 1)
        speedup = self.tokens / self.cost if has_cost and self.cost > 0 else None
        return Summary(
            tokens=self.tokens,
            steps=self.steps,
            mean_accepted_tokens=self.tokens / steps,
            nodes_per_step=self.nodes / steps,
            simulated_speedup=speedup,
            reliability=self.reliability.table(),
        )


def replay(
    trace: Trace,
    make: Callable[[], Drafter],
    budget: int,
    cost: Callable[[int], float] | None = None,
) -> Result:
    """Replay a trace greedily.

    Args:
        trace: the recorded text.
        make: makes a fresh drafter; called once per record.
        budget: most draft nodes per step, the root not counted; less near the end of a record,
            where no more tokens are left to emit.
        cost: relative time of a decode step of n tokens, the root counted.

    Returns:
        A summary per category, and one named ``all``.

    Raises:
        ConfigError: if the budget is negative.
        TraceError: if a category is named ``all``.
    """
    if budget < 0:
        raise ConfigError(f"draft budget is {budget}; it must not be negative")
    tallies = {"all": _Tally()}
    for record in trace:
        if record.category == "all":
            raise TraceError("a category must not be named 'all'")
        tally = tallies.setdefault(record.category, _Tally())
        _replay_record(record, make(), budget, cost, (tally, tallies["all"]))
    total = tallies.pop("all")
    result = {name: tally.summary(cost is not None) for name, tally in sorted(tallies.items())}
    result["all"] = total.summary(cost is not None)
    return result


def _replay_record(
    record: Record,
    drafter: Drafter,
    budget: int,
    cost: Callable[[int], float] | None,
    tallies: Sequence[_Tally],
) -> None:
    tokens: list[TokenId] = record.tokens.tolist()
    prime(record, tokens, drafter)
    # Position of the root: first that of the answer's first token, which the prompt's last row
    # decided. The last token of the record is emitted but never decoded.
    position = record.n_prompt
    while position < len(tokens) - 1:
        n_left = len(tokens) - 1 - position
        tree = drafter.draft(min(budget, n_left - 1))
        path = replay_step(record, tokens, drafter, tree, position)
        n_emitted = len(path)
        for tally in tallies if isinstance(drafter, AutoDrafter) else ():
            for depth, node in enumerate(path):
                tally.reliability.count(tree, node, tokens[position + depth + 1])
        position += n_emitted
        for tally in tallies:
            tally.tokens += n_emitted
            tally.steps += 1
            tally.nodes += len(tree)
            tally.cost += cost(len(tree)) if cost is not None else 0.0


def replay_step(
    record: Record, tokens: list[TokenId], drafter: Drafter, tree: DraftTree, position: int
) -> list[NodeId]:
    """Walk one tree and teach the drafter; return the accepted path.

    It has as many nodes as tokens are emitted: the root was emitted before, the next token is now.
    """

    def sample(node: NodeId) -> TokenId:
        return tokens[position + tree.depths[node] + 1]

    path, next_token = verify(tree, sample)
    rows = _rows(record, drafter, position, path)
    drafter.accept(StepOutcome(tree, path, next_token, rows))
    return path


def prime(record: Record, tokens: list[TokenId], drafter: Drafter) -> None:
    """Teach a drafter the prompt of a record, and the first token of its answer."""
    prompt = tokens[: record.n_prompt]
    drafter.begin()
    drafter.feed(prompt)
    width = drafter.row_width
    if width:
        index = drafter.wanted_rows(prompt)
        drafter.learn(Rows(index, record.topk_ids[index, :width], record.topk_probs[index, :width]))
    drafter.feed(tokens[record.n_prompt : record.n_prompt + 1])


def _rows(record: Record, drafter: Drafter, position: int, path: Sequence[NodeId]) -> Rows | None:
    width = drafter.row_width
    if not width:
        return None
    here = slice(position, position + len(path))
    index = np.asarray(path, dtype=np.int32)
    return Rows(index, record.topk_ids[here, :width], record.topk_probs[here, :width])
