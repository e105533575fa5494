"""The chat page: ``racer-local ui``.

Thin over ``Session``: ``service`` runs answers, loads and benchmarks on the one thread that
computes and knows no Gradio; ``conversation``, ``panels``, ``tree_view`` and ``bench_view`` are
pure; ``chat_tab``, ``race_tab``, ``tree_tab``, ``bench_tab`` and ``model_bar`` put them on a page,
and ``app`` puts that into the web app whose host and origin checks the HTTP server shares.

Inside an installed wheel this package is ``racer_local_ui``; ``racer_local.cli.ui_package`` finds
it.
"""
