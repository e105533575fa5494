"""PyInstaller: llama.cpp's libraries, which llama-cpp-python looks for in its own folder."""

from pathlib import Path

from PyInstaller.utils.hooks import get_package_paths  # type: ignore[import-not-found]

_folder = Path(get_package_paths("llama_cpp")[1]) / "lib"
# With their version suffixes: the libraries ask for each other by those names.
binaries = [
    (str(path), "llama_cpp/lib")
    for path in sorted(_folder.glob("*"))
    if path.suffix in (".dll", ".dylib") or ".so" in path.suffixes
]
