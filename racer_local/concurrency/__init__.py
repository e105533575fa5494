"""Which thread works, whose turn it is, and when time is up. Pure (standard library)."""
