"""What every control does, in plain words; shown beside it and read out by screen readers."""

from __future__ import annotations

__all__ = ["TIPS"]

TIPS = {
    "rl-model": "A model in your models folder or of the catalog, or type the path of any GGUF "
    "file. Load only files you trust.",
    "rl-load": "Opens the chosen model. The conversation stays; a file that cannot be used leaves "
    "the model before in place.",
    "rl-mode": "Where guesses come from. The answer stays the model's own in every mode; only the "
    "speed changes. “off” shows plain decoding.",
    "rl-budget": "How many guessed tokens may be checked in one pass. “auto” seldom takes all of "
    "them. On a CPU, the fixed modes are fastest with 2 to 8.",
    "rl-exact": "Gives the very tokens of plain decoding, to the last bit. Takes a little longer "
    "and opens the model anew. Without it, texts can differ where two tokens are almost equally "
    "likely.",
    "rl-remember": "Keeps conversations on this machine, in your data folder and readable by you "
    "alone, and guesses from them in later ones. Off: nothing is kept. “racer-local forget” "
    "removes all. Opens the model anew.",
    "rl-system": "Instructions that stand before the conversation. Empty: none.",
    "rl-temperature": "0 always takes the likeliest word; higher is more varied.",
    "rl-max-tokens": "Counted in tokens; one is about three quarters of an English word.",
    "rl-seed": "The same seed with the same settings gives the same answer again. Empty: a fresh "
    "one each time.",
    "rl-top-k": "Choose among this many likeliest words only; 0 is all.",
    "rl-top-p": "Choose among the likeliest words that together make up this share; 1 is all.",
    "rl-min-p": "Leave out words whose chance is below this share of the likeliest one's; 0 keeps "
    "all.",
    "rl-repeat": "Above 1 avoids recent words. Repetition is what RACER guesses from, so this "
    "costs speed.",
    "rl-export-json": "Saves the conversation as a file that can be imported again.",
    "rl-export-md": "Saves the conversation as Markdown: good to read, and can be imported again.",
    "rl-import": "Opens a conversation that was exported here, or a JSON list of messages. It "
    "replaces the one on the page.",
    "rl-send": "Sends your message. Enter does the same; Shift+Enter makes a new line.",
    "rl-stop": "Stops the answer at once; what was written stays. Esc does the same.",
    "rl-race-prompt": "Both answer this, one after the other, with the settings at the side.",
    "rl-race-go": "Answers first without guesses, then with them, each from an empty cache.",
    "rl-race-stop": "Stops the race. Esc does the same.",
    "rl-tree-step": "Which decode step of the last answer to look at.",
    "rl-tree-skip": "Leaves out steps in which nothing was guessed.",
    "rl-tree-back": "One step back.",
    "rl-tree-on": "One step on.",
    "rl-bench-categories": "Which kinds of text to measure. The prompts come with racer_local.",
    "rl-bench-count": "Prompts of each kind. More take longer and say more.",
    "rl-bench-tokens": "How long each answer may get, in tokens.",
    "rl-bench-go": "Answers every prompt plainly and with guesses, in turn, from an empty cache.",
    "rl-bench-stop": "Stops measuring; what is complete stays. Esc does the same.",
}
