"""Model files that other programs keep on this machine: found, never changed. Layer: files."""
