"""``python -m racer_local`` is ``racer-local``."""

from racer_local.cli import main

if __name__ == "__main__":
    main()
