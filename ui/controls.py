"""The settings at the side: how to answer and how to draft. Every one has a tip in plain words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import gradio as gr

from racer_local.config import DraftConfig, DraftMode, GenerationConfig, SamplingConfig
from racer_local.errors import ConfigError

from .facts import PageFacts
from .service import Ask, Messages

__all__ = ["Controls"]

_SAMPLING = SamplingConfig()
_MAX_BUDGET = 64
_MODES = {
    "auto": "auto · guess what pays",
    "racer": "racer · the paper's fixed tree",
    "retrieval": "retrieval only",
    "logits": "Copy-Logit only",
    "last-logit": "last step's logits only",
    "pld": "prompt lookup",
    "off": "off · plain decoding",
}


class Controls:
    """The components, and what their values mean.

    Attributes:
        system: the system prompt.
        exact: whether answers are token-identical to plain decoding; opens the model anew.
        remember: whether conversations are kept and drafted from later; opens the model anew.
        budget: most guesses in a step.
        inputs: all components, in the order that ``ask`` takes their values.
    """

    def __init__(self, facts: PageFacts, draft: DraftConfig, *, is_shared: bool = False) -> None:
        """Build the components where the caller's layout stands.

        What opens the model anew is left out where others share it.
        """
        with gr.Accordion("Drafting", open=True, elem_classes="rl-group"):
            modes = [(_MODES.get(mode, mode), mode) for mode in get_args(DraftMode)]
            self.mode = gr.Dropdown(
                modes,
                value=draft.mode,
                label="How to guess",
                elem_id="rl-mode",
                filterable=False,
            )
            self.budget = gr.Slider(
                1,
                # Never smaller: Gradio refuses a value that a lower maximum left behind. What a
                # model cannot take is cut by the service.
                max(_MAX_BUDGET, draft.budget),
                value=max(1, draft.budget),
                step=1,
                label="Most guesses per step",
                elem_id="rl-budget",
                buttons=[],
            )
            self.exact = gr.Checkbox(
                facts.is_exact,
                label="exact",
                container=False,
                visible=not is_shared,
                elem_id="rl-exact",
            )
            self.remember = gr.Checkbox(
                facts.remembers,
                label="remember",
                container=False,
                visible=not is_shared,
                elem_id="rl-remember",
            )
        with gr.Accordion("Answer", open=False, elem_classes="rl-group"):
            self.system = gr.Textbox(
                label="System prompt",
                lines=2,
                max_lines=8,
                placeholder="You are a helpful assistant.",
                elem_id="rl-system",
            )
            self.temperature = gr.Slider(
                0,
                2,
                value=_SAMPLING.temperature,
                step=0.05,
                label="Temperature",
                elem_id="rl-temperature",
                buttons=[],
            )
            self.max_tokens = gr.Slider(
                16,
                4096,
                value=512,
                step=16,
                label="Longest answer",
                elem_id="rl-max-tokens",
                buttons=[],
            )
            self.seed = gr.Textbox(
                label="Seed",
                placeholder="a fresh one each time",
                max_lines=1,
                max_length=10,
                elem_id="rl-seed",
            )
        with gr.Accordion("Fine tuning", open=False, elem_classes="rl-group"):
            self.top_k = gr.Slider(
                0,
                200,
                value=_SAMPLING.top_k,
                step=1,
                label="Top-k",
                elem_id="rl-top-k",
                buttons=[],
            )
            self.top_p = gr.Slider(
                0,
                1,
                value=_SAMPLING.top_p,
                step=0.01,
                label="Top-p",
                elem_id="rl-top-p",
                buttons=[],
            )
            self.min_p = gr.Slider(
                0,
                1,
                value=_SAMPLING.min_p,
                step=0.01,
                label="Min-p",
                elem_id="rl-min-p",
                buttons=[],
            )
            self.repeat = gr.Slider(
                1,
                2,
                value=_SAMPLING.repeat_penalty,
                step=0.01,
                label="Repeat penalty",
                elem_id="rl-repeat",
                buttons=[],
            )
        self.inputs: list[Any] = [
            self.mode,
            self.budget,
            self.system,
            self.temperature,
            self.max_tokens,
            self.seed,
            self.top_k,
            self.top_p,
            self.min_p,
            self.repeat,
        ]

    @staticmethod
    def ask(messages: Messages, values: Sequence[Any], *, is_fresh: bool = False) -> Ask:
        """Make a question of a conversation and the values of ``inputs``.

        Raises:
            ConfigError: a value is out of range.
        """
        mode, budget, system, temperature, max_tokens, seed, top_k, top_p, min_p, repeat = values
        said = [{"role": "system", "content": system}] if system and system.strip() else []
        return Ask(
            messages=[*said, *messages],
            sampling=SamplingConfig(
                temperature=temperature,
                top_k=_whole(top_k),
                top_p=top_p,
                min_p=min_p,
                repeat_penalty=repeat,
                seed=_seed(seed),
            ),
            limits=GenerationConfig(max_tokens=_whole(max_tokens)),
            draft=DraftConfig(mode=mode, budget=_whole(budget)),
            is_fresh=is_fresh,
        )

    def limits_for(self, facts: PageFacts) -> dict[Any, Any]:
        """Return updates that fit the controls to another model."""
        can_draft = facts.max_nodes > 0
        return {
            self.budget: gr.update(interactive=can_draft),
            self.mode: gr.update(interactive=can_draft),
            self.exact: facts.is_exact,
            self.remember: facts.remembers,
        }


def _seed(text: str | None) -> int | None:
    text = (text or "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"seed is {text!r}; give a whole number, or nothing for a fresh one")
    return int(text)


def _whole(value: Any) -> Any:
    """Turn 3.0 into 3 (JavaScript knows no difference); anything else is left to be refused."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
