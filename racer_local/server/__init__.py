"""The OpenAI-compatible server: ``racer-local serve``. Needs the extra ``server``.

``schema`` is what may come in and ``replies`` what goes out; ``asking`` turns the one into a
generation and ``telling`` its events into the other. ``host`` owns the model and the one thread
that works for it. ``routes`` and ``app`` join them. See ``docs/server.md``.
"""
