"""A chat window in Tk: words coloured by who proposed them, a Stop button, no frozen window.

    python docs/examples/desktop.py [MODEL.gguf]

Without a path it looks for a ``.gguf`` file beside the program. The model is asked on a thread of
its own; only the window's thread touches the window, and takes events from a queue.
"""

from __future__ import annotations

import queue
import sys
import threading
import tkinter as tk
from pathlib import Path
from tkinter import messagebox
from typing import Any

from racer_local import RacerLlama

# Colour is not the only mark: what was drafted is underlined too.
COLOURS = {
    "target": "#202020",
    "retrieval": "#0a6b2d",
    "logits": "#1d4fa8",
    "phrasebook": "#7a3f9d",
}
POLL_MS = 30


class ChatWindow:
    """One conversation with one model."""

    def __init__(self, root: tk.Tk, llama: RacerLlama) -> None:
        """Build the window."""
        self.root = root
        self.llama = llama
        self.messages: list[dict[str, str]] = []
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.thread: threading.Thread | None = None
        self.answer = ""
        root.title("racer_local")
        self.text = tk.Text(root, wrap="word", state="disabled", width=80, height=24)
        self.entry = tk.Entry(root)
        self.status = tk.Label(root, anchor="w", text="ready")
        self.send = tk.Button(root, text="Send", command=self.ask)
        self.stop = tk.Button(root, text="Stop", command=self.llama.cancel, state="disabled")
        self.text.pack(fill="both", expand=True)
        self.status.pack(fill="x", side="bottom")
        self.stop.pack(side="right")
        self.send.pack(side="right")
        self.entry.pack(fill="x", expand=True)
        self.entry.bind("<Return>", lambda _event: self.ask())
        for source, colour in COLOURS.items():
            self.text.tag_configure(source, foreground=colour, underline=source != "target")
        self.text.tag_configure("user", font=("TkDefaultFont", 10, "bold"))
        root.protocol("WM_DELETE_WINDOW", self.close)
        self.poll()

    def ask(self) -> None:
        """Send what was typed; does nothing while an answer is being written."""
        question = self.entry.get().strip()
        if not question or self.thread is not None:
            return
        self.answer = ""
        self.entry.delete(0, "end")
        self.show(f"{question}\n", "user")
        self.messages.append({"role": "user", "content": question})
        self.send["state"], self.stop["state"] = "disabled", "normal"
        self.thread = threading.Thread(target=self.work, args=(list(self.messages),))
        self.thread.start()

    def work(self, messages: list[dict[str, str]]) -> None:
        """Run on the answer's thread: hand every event to the window."""
        try:
            for event in self.llama.stream_events(messages, max_tokens=400, temperature=0.7):
                self.events.put(event)
        except Exception as error:
            self.events.put(error)
        self.events.put(None)

    def poll(self) -> None:
        """Run on the window's thread: show what has come since the last time."""
        while not self.events.empty():
            event = self.events.get()
            if event is None:
                self.finish()
            elif isinstance(event, Exception):
                self.status["text"] = f"error: {event}"
            else:
                self.answer += event.text
                self.show(event.text, event.source)
                self.status["text"] = event.stats.line()
                if event.finish_reason is not None:
                    self.show("\n\n", "target")
        self.root.after(POLL_MS, self.poll)

    def show(self, text: str, tag: str) -> None:
        """Append text to the conversation."""
        self.text["state"] = "normal"
        self.text.insert("end", text, tag)
        self.text["state"] = "disabled"
        self.text.see("end")

    def finish(self) -> None:
        """Be ready for the next question."""
        assert self.thread is not None
        self.thread.join()
        self.thread = None
        self.messages.append({"role": "assistant", "content": self.answer})
        self.send["state"], self.stop["state"] = "normal", "disabled"

    def close(self) -> None:
        """Stop the answer, then close the window."""
        self.llama.cancel()
        if self.thread is not None:
            self.thread.join()
        self.root.destroy()


def find_model(arguments: list[str]) -> Path | None:
    """Return the model that was named, or the first one beside the program."""
    if arguments:
        return Path(arguments[0])
    # A frozen program has its files beside the executable, not beside this module.
    here = Path(sys.executable if getattr(sys, "frozen", False) else __file__).parent
    return next(iter(sorted(here.glob("*.gguf"))), None)


def main(arguments: list[str]) -> int:
    """Open the window; ``--ask TEXT MODEL`` answers on the terminal, to try a frozen program."""
    if arguments[:1] == ["--ask"]:
        # A pipe on Windows has another encoding, which lacks most of what models write.
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]  # not in a window
        llama = RacerLlama(arguments[2], n_ctx=1024)
        for event in llama.stream_events(arguments[1], max_tokens=24, temperature=0):
            sys.stdout.write(event.text)
        sys.stdout.write("\n")
        llama.close()
        return 0
    path = find_model(arguments)
    root = tk.Tk()
    if path is None or not path.exists():
        messagebox.showerror("racer_local", "Put a .gguf model file beside the program.")
        return 1
    llama = RacerLlama(str(path), n_ctx=4096, overflow="drop_oldest")
    ChatWindow(root, llama)
    root.mainloop()
    llama.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
