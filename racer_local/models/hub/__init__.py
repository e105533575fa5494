"""Fetching models from the Hugging Face hub into its shared cache. Layer: files and network."""
