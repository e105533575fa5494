"""``racer-local doctor``: what this machine can do, and what holds it back."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click

from racer_local.cli.opening import open_session
from racer_local.cli.options import model_config, model_options
from racer_local.config import DraftConfig

if TYPE_CHECKING:
    from racer_local.backend.devices import Device
    from racer_local.config import ModelConfig
    from racer_local.hardware.advice import MachineFacts

__all__ = ["command"]

_MEASURE_S = 6.0
_N_MAX = 64


@click.command("doctor")
@model_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--debug", is_flag=True, help="Show a traceback if something fails.")
def command(as_json: bool, **options: Any) -> int:
    """Examine the machine, measure what decode steps cost, and give advice.

    \b
    Examples:
      racer-local doctor
      racer-local doctor --model path/to/model.gguf --threads 4

    The plot shows what a step that checks several tokens at once costs, relative to one token:
    drafting pays where more tokens are accepted than a step costs.
    """
    from racer_local.backend.devices import build_commit, devices, system_features
    from racer_local.backend.native import runtime_version
    from racer_local.hardware.advice import advise, plot_curve, verdict
    from racer_local.hardware.machine import describe_machine

    # What does not fit is advised about, not refused.
    unchecked = {**options, "no_memory_check": True}
    config = model_config(unchecked, DraftConfig(mode="racer", budget=_N_MAX - 1))
    facts, n_threads = _facts(config)
    advice = advise(facts)
    seconds: dict[int, float] = {}
    notices = ["the model was not loaded, so nothing was measured"]
    if facts.needed_bytes <= facts.free_bytes or options["no_memory_check"]:
        seconds, notices = _measure(config)
    machine = describe_machine()
    machine["runtime"] = runtime_version()
    machine["ggml"] = build_commit()
    found = devices()
    if as_json:
        result = {
            "machine": machine,
            "features": system_features(),
            "devices": [
                {key: getattr(device, key) for key in device.__slots__} for device in found
            ],
            "model": str(config.path),
            "n_threads": n_threads,
            "step_seconds": seconds,
            "notices": notices,
            "advice": advice,
        }
        click.echo(json.dumps(result, ensure_ascii=False))
        return 0
    rows = [
        ("machine", f"{machine['cpu']}, {machine['usable_cores']} usable cores"),
        ("memory", f"{facts.free_bytes / 1e9:.1f} GB free, the model needs "
                   f"{facts.needed_bytes / 1e9:.1f} GB"),
        ("system", f"{machine['system']}, Python {machine['python']}"),
        ("llama.cpp", f"{machine['runtime']}, ggml {machine['ggml'] or 'of an unknown commit'}"),
        *[("device", _described(device)) for device in found],
        ("threads", str(n_threads)),
        ("model", str(config.path)),
    ]  # fmt: skip
    for label, value in rows:
        click.echo(f"{label:<10} {value}")
    for notice in notices:
        click.echo(f"note: {notice}")
    if seconds:
        click.echo("\nWhat a decode step costs:")
        click.echo("\n".join(plot_curve(seconds)))
        click.echo("\nWhich drafts pay (a chain of guesses, each as likely as the other):")
        click.echo("\n".join(verdict(seconds)))
    click.echo("\nAdvice:")
    click.echo("\n".join(f"- {line}" for line in advice or ["nothing to improve was found"]))
    return 0


def _described(device: Device) -> str:
    text = f"{device.name}: {device.description} ({device.kind})"
    if device.kind == "GPU" and device.total_bytes:
        text += f", {device.free_bytes / 1e9:.1f} of {device.total_bytes / 1e9:.1f} GB free"
    return text


def _facts(config: ModelConfig) -> tuple[MachineFacts, int]:
    from racer_local.backend.native import physical_cores
    from racer_local.gguf.header import inspect_gguf
    from racer_local.hardware.advice import MachineFacts
    from racer_local.hardware.machine_state import governor, graphics_cards, is_on_battery
    from racer_local.hardware.memory import (
        available_bytes,
        context_size,
        estimate_memory,
        expected_kv_type,
    )
    from racer_local.hardware.native_check import extra_buffers_are_safe, gpu_backends

    info = inspect_gguf(config.path)
    kv_type = expected_kv_type(info, config)
    estimate = estimate_memory(info, context_size(info, config.n_ctx), kv_type)
    n_physical = physical_cores()
    n_threads = config.n_threads or n_physical
    facts = MachineFacts(
        gpu_names=graphics_cards(),
        gpu_backends=gpu_backends(),
        n_physical=n_physical,
        n_threads=n_threads,
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        is_on_battery=is_on_battery(),
        governor=governor(),
        needed_bytes=estimate.total,
        free_bytes=available_bytes(),
        misuses_amx=not extra_buffers_are_safe(),
    )
    return facts, n_threads


def _measure(config: ModelConfig) -> tuple[dict[int, float], list[str]]:
    """Time steps of rising size; nothing where the model cannot draft."""
    from racer_local.measuring.probe import probe_steps

    off = DraftConfig(mode="off")
    with open_session(config, off) as session:
        if not session.target.max_nodes:
            return {}, session.notices
        probe = session.run(lambda: probe_steps(session.target, _N_MAX, _MEASURE_S))
        return dict(probe.points), session.notices
