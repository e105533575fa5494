"""Find the chat page's package: the ``ui`` folder of a checkout, or the wheel's copy of it.

Both go by the name ``racer_local_ui``. A plain ``import ui`` would take whatever module of that
name comes first on the path.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

from racer_local.models.catalog import checkout_folder

__all__ = ["ui_module"]

_NAME = "racer_local_ui"


def ui_module(name: str) -> ModuleType:
    """Import a module of the chat page's package.

    Args:
        name: such as ``app``.

    Raises:
        ImportError: it, or something it needs, is not installed.
    """
    checkout = checkout_folder()
    if checkout is not None and _NAME not in sys.modules:
        start = checkout / "ui" / "__init__.py"
        spec = importlib.util.spec_from_file_location(
            _NAME, start, submodule_search_locations=[str(start.parent)]
        )
        if spec is not None and spec.loader is not None:
            package = importlib.util.module_from_spec(spec)
            sys.modules[_NAME] = package
            spec.loader.exec_module(package)
    return importlib.import_module(f"{_NAME}.{name}")
