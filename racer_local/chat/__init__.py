"""What a chat is made of, whoever shows it: history, files, settings, reasoning. Layer: pure."""
