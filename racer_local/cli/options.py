"""Options that several commands share, and the settings they make. Defaults come from config."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_args

import click

from racer_local.cli.completion import complete_model
from racer_local.config import (
    Device,
    DraftConfig,
    DraftMemory,
    DraftMode,
    GenerationConfig,
    KvType,
    ModelConfig,
    SamplingConfig,
)

__all__ = [
    "book_option",
    "book_options",
    "device_options",
    "draft_config",
    "draft_options",
    "generation_config",
    "model_config",
    "model_options",
    "sampling_config",
    "sampling_options",
]

_F = TypeVar("_F", bound=Callable[..., Any])

_DRAFT = DraftConfig()
_SAMPLING = SamplingConfig()


def _all(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    def decorate(function: _F) -> _F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def draft_options(function: _F) -> _F:
    """Add --draft and --budget."""
    return _all(
        click.option(
            "--draft",
            "draft_mode",
            type=click.Choice(get_args(DraftMode)),
            default=_DRAFT.mode,
            show_default=True,
            help="How to draft; off is plain decoding.",
        ),
        click.option(
            "--budget",
            type=int,
            default=_DRAFT.budget,
            show_default=True,
            help="Most draft tokens in one step.",
        ),
    )(function)


def book_option(function: _F) -> _F:
    """Add --book."""
    return click.option(
        "--book",
        "books",
        metavar="NAME",
        multiple=True,
        help="Draft from this phrase book too (see index), with --draft auto; repeatable.",
    )(function)


def book_options(function: _F) -> _F:
    """Add --book and --remember."""
    return _all(
        book_option,
        click.option(
            "--remember",
            is_flag=True,
            help="Keep this text on this machine, and draft from what was kept (see forget).",
        ),
    )(function)


def device_options(function: _F) -> _F:
    """Add the options that say where a model is computed."""
    return _all(
        click.option("--threads", type=int, help="Threads.  [default: the physical cores]"),
        click.option(
            "--device",
            type=click.Choice(get_args(Device)),
            default="auto",
            show_default=True,
            help="Where to compute.",
        ),
        click.option("--gpu-layers", type=int, help="Layers on the GPU.  [default: all]"),
    )(function)


def model_options(function: _F) -> _F:
    """Add the options that say which model to open and how."""
    return _all(
        click.option(
            "--model",
            "-m",
            metavar="NAME_OR_PATH",
            shell_complete=complete_model,
            help="A GGUF file or a name (racer-local models).  [default: SmolLM2-135M-Instruct]",
        ),
        click.option(
            "--ctx",
            type=int,
            help="Context size in tokens; 0 takes the model's own.  [default: at most 4096]",
        ),
        device_options,
        click.option(
            "--kv-type",
            type=click.Choice(get_args(KvType)),
            help="Elements of the KV cache.  [default: q8_0 on a processor, f16 on a GPU]",
        ),
        click.option(
            "--exact",
            is_flag=True,
            help="The very tokens of plain decoding: q8_0 KV cache, trees of limited size.",
        ),
        click.option(
            "--no-memory-check", is_flag=True, help="Load even what seems too large for the memory."
        ),
    )(function)


def sampling_options(function: _F) -> _F:
    """Add the options that say how tokens are chosen and when to end."""
    return _all(
        click.option("--max-tokens", "-n", type=int, help="Most tokens.  [default: no limit]"),
        click.option(
            "--temp",
            type=float,
            default=_SAMPLING.temperature,
            show_default=True,
            help="0 takes the likeliest token.",
        ),
        click.option(
            "--top-k",
            type=int,
            default=_SAMPLING.top_k,
            show_default=True,
            help="Keep the N likeliest tokens; 0 keeps all.",
        ),
        click.option(
            "--top-p",
            type=float,
            default=_SAMPLING.top_p,
            show_default=True,
            help="Keep the likeliest tokens of this total probability.",
        ),
        click.option(
            "--min-p",
            type=float,
            default=_SAMPLING.min_p,
            show_default=True,
            help="Drop tokens below this share of the likeliest one's probability.",
        ),
        click.option(
            "--repeat-penalty",
            type=float,
            default=_SAMPLING.repeat_penalty,
            show_default=True,
            help="Above 1 discourages recent tokens.",
        ),
        click.option(
            "--presence-penalty",
            type=float,
            default=_SAMPLING.presence_penalty,
            show_default=True,
            help="Taken once from the logit of every recent token.",
        ),
        click.option(
            "--frequency-penalty",
            type=float,
            default=_SAMPLING.frequency_penalty,
            show_default=True,
            help="Taken once for every recent occurrence.",
        ),
        click.option("--seed", type=int, help="Of the random numbers.  [default: a fresh one]"),
        click.option("--stop", multiple=True, help="Text that ends the answer; repeatable."),
    )(function)


def draft_config(options: dict[str, Any], memory: DraftMemory = "conversation") -> DraftConfig:
    """Make draft settings; out-of-range values raise ``ConfigError``."""
    return DraftConfig(mode=options["draft_mode"], budget=options["budget"], memory=memory)


def model_config(options: dict[str, Any], draft: DraftConfig) -> ModelConfig:
    """Find the model, fetch it if it is of the catalog, and make its settings.

    Raises:
        RacerError: there is no such model, a setting is out of range, or memory is too small.
    """
    from racer_local.cli.progress import Progress
    from racer_local.models.store import resolve_model

    with Progress("fetching the model", unit="MB", scale=1e-6) as progress:
        path = resolve_model(options["model"], progress.show)
    config = ModelConfig(
        path=path,
        n_ctx=options["ctx"],
        n_threads=options["threads"],
        device=options["device"],
        n_gpu_layers=options["gpu_layers"],
        max_nodes=draft.budget if draft.mode != "off" else 0,
        max_leaves=draft.max_leaves,
        kv_type=options.get("kv_type"),
        exact=options.get("exact", False),
    )
    if not options.get("no_memory_check"):
        from racer_local.hardware.memory import has_own_gpu_memory, require_memory

        require_memory(config, gpu_bytes=_gpu_bytes() if has_own_gpu_memory(config) else None)
    return config


def _gpu_bytes() -> int | None:
    """Return the free memory of all graphics cards; None where llama.cpp does not tell."""
    from racer_local.backend.devices import devices

    free = [device.free_bytes for device in devices() if device.kind == "GPU"]
    return sum(free) or None


def sampling_config(options: dict[str, Any]) -> SamplingConfig:
    """Make sampling settings; out-of-range values raise ``ConfigError``."""
    return SamplingConfig(
        temperature=options["temp"],
        top_k=options["top_k"],
        top_p=options["top_p"],
        min_p=options["min_p"],
        repeat_penalty=options["repeat_penalty"],
        presence_penalty=options["presence_penalty"],
        frequency_penalty=options["frequency_penalty"],
        seed=options["seed"],
    )


def generation_config(options: dict[str, Any]) -> GenerationConfig:
    """Make limits; out-of-range values raise ``ConfigError``."""
    return GenerationConfig(max_tokens=options["max_tokens"], stop=tuple(options["stop"]))
