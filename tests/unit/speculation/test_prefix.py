from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from racer_local.speculation.prefix import common_prefix

TEXT = st.lists(st.integers(0, 2), max_size=40)


@given(TEXT, TEXT, TEXT)
def test_it_is_what_a_loop_over_the_tokens_finds(start: list[int], a: list[int], b: list[int]):
    a, b = start + a, start + b
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    assert common_prefix(a, b) == common_prefix(b, a) == n
