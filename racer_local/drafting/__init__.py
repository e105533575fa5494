"""Drafters: what proposes tokens. Pure code; nothing here imports llama_cpp."""
