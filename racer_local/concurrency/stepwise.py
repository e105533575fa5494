"""Work that is done a step at a time, so that others get the thread in between. Layer: pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from racer_local.concurrency.call_queue import Call, CallQueue
from racer_local.concurrency.compute_thread import Computer

__all__ = ["submit_steps"]


def submit_steps(
    calls: CallQueue,
    compute: Computer,
    work: Callable[[Call], Iterator[None]],
    on_end: Callable[[BaseException | None], None],
) -> Call:
    """Have ``work`` done on the compute thread in its turn, without waiting for it.

    Args:
        calls: the queue to wait in.
        compute: where.
        work: gives up the thread wherever it yields, but keeps its turn.
        on_end: called once at the end, on any thread, with what ``work`` raised, or with None;
            also if the call was cancelled before its turn. It must not raise.

    Raises:
        ClosedError: the queue was closed.
    """

    def end(call: Call, error: BaseException | None) -> None:
        call.watch(None)
        call.close()
        on_end(error)

    def begin(call: Call) -> None:
        if call.is_served:
            go_on(call, work(call), is_first=True)
        else:
            on_end(None)

    def go_on(call: Call, steps: Iterator[None], *, is_first: bool = False) -> None:
        try:
            if not is_first:
                next(steps)
            compute.begin(lambda: go_on(call, steps))
        except StopIteration:
            end(call, None)
        except BaseException as error:  # noqa: BLE001 - handed on
            end(call, error)

    return calls.submit(begin)
