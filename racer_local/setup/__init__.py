"""Makes the environment. Runs before anything is installed: standard library only."""
