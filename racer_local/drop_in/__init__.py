"""For applications: ``RacerLlama`` and what it is made of. See ``docs/embedding.md``."""
