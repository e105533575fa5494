"""The words that drafting, llama.cpp and decoding share: trees, rows, acceptance. Pure."""
