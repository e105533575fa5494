"""The page as a whole, and the web app it lives in."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

from fastapi import FastAPI

from racer_local.web.app import make_app
from racer_local.web.origins import TrustedNames

from .live import LiveAnswers, add_live
from .service import PageService
from .tips import TIPS

# Before Gradio is imported: it reads these then.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ.pop("GRADIO_VIBE_MODE", None)
os.environ.pop("GRADIO_ALLOWED_PATHS", None)

with warnings.catch_warnings():
    # Of libraries under it, about each other.
    warnings.simplefilter("ignore")
    import gradio as gr

    from .bench_tab import BenchTab
    from .chat_tab import ChatTab
    from .controls import Controls
    from .model_bar import ModelBar, header
    from .race_tab import RaceTab
    from .tree_tab import TreeTab

__all__ = ["add_page", "build_page", "make_ui_app"]

_HERE = Path(__file__).resolve().parent
_TITLE = "racer_local"
# More pages than this are told to try again; how many may ask is the service's business.
_MAX_EVENTS = 64
_LOOK_EVERY_S = 0.05


def build_page(service: PageService, live: LiveAnswers) -> gr.Blocks:
    """Build the page for a service; ``live`` takes the answers that are being written."""
    with gr.Blocks(title=_TITLE, analytics_enabled=False, fill_width=True) as page:
        head = gr.HTML(header(service.facts), elem_id="rl-header")
        with gr.Row(elem_classes="rl-page"):
            with gr.Column(scale=0, min_width=270, elem_classes="rl-side"):
                picker = ModelBar(service)
                controls = Controls(service.facts, service.draft, is_shared=service.is_shared)
                files = gr.Column(elem_classes="rl-files")
            with gr.Column(scale=1, min_width=320, elem_classes="rl-main"), gr.Tabs():
                with gr.Tab("Chat", id="chat"):
                    chat = ChatTab(service, controls, live)
                with gr.Tab("Race", id="race"):
                    RaceTab(service, controls)
                with gr.Tab("Draft tree", id="tree") as tree_tab:
                    TreeTab(chat.last, tree_tab)
                if not service.is_shared:
                    with gr.Tab("Benchmark", id="bench"):
                        BenchTab(service)
            with files:
                chat.build_files()
        picker.wire(controls, head, chat.meter)

        def leave(request: gr.Request) -> None:
            for kind in ("", " race", " bench"):
                service.stop(f"{request.session_hash}{kind}")
            service.leave(str(request.session_hash))

        page.unload(leave)
        # Another tab may have loaded another model since this page was built.
        page.load(
            lambda: [
                header(service.facts),
                service.facts.name,
                service.facts.is_exact,
                service.facts.remembers,
            ],
            None,
            [head, picker.choice, controls.exact, controls.remember],
            queue=False,
            show_progress="hidden",
            api_visibility="private",
        )
    page.queue(max_size=_MAX_EVENTS, default_concurrency_limit=None, api_open=False)
    # Gradio looks for new events a thousand times a second, and each time takes a core and Python
    # from the model; on Windows it looks as often as here.
    page._queue.sleep_when_free = _LOOK_EVERY_S
    return page


def make_ui_app(service: PageService, names: TrustedNames) -> FastAPI:
    """Make the web app: the page at ``/``, behind the host and origin checks."""
    app = make_app(names, title=_TITLE)
    add_page(app, service, names, "/")
    return app


def add_page(app: FastAPI, service: PageService, names: TrustedNames, path: str) -> None:
    """Put the page into an app whose checks are those of ``make_app``."""
    live = LiveAnswers()
    add_live(app, live, path)
    gr.mount_gradio_app(
        app,
        build_page(service, live),
        path=path,
        server_name=names.bind,
        footer_links=[],
        run_history=False,
        allowed_paths=[],
        blocked_paths=[os.path.abspath(os.sep)],
        max_file_size=1,
        ssr_mode=False,
        mcp_server=False,
        enable_monitoring=False,
        pwa=False,
        theme=_theme(),
        css=(_HERE / "page.css").read_text(encoding="utf-8"),
        js=(_HERE / "page.js").read_text(encoding="utf-8").replace("__TIPS__", json.dumps(TIPS)),
        show_error=True,
    )


def _theme() -> gr.themes.Base:
    sans = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif")
    mono = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")
    theme: gr.themes.Base = gr.themes.Base(
        primary_hue="teal", neutral_hue="zinc", font=sans, font_mono=mono, radius_size="md"
    )
    return theme.set(
        button_primary_background_fill="#0f766e",
        button_primary_background_fill_hover="#115e59",
        button_primary_text_color="#ffffff",
        button_primary_background_fill_dark="#0f766e",
        block_border_width="0px",
        block_shadow="none",
        block_label_background_fill="transparent",
        block_background_fill="transparent",
        block_background_fill_dark="transparent",
        body_background_fill="#ffffff",
        body_background_fill_dark="#18181b",
    )
