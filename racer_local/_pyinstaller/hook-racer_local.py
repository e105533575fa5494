"""PyInstaller: what is loaded by name, and the data files."""

from PyInstaller.utils.hooks import collect_data_files  # type: ignore[import-not-found]

hiddenimports = ["racer_local.drop_in.llama", "racer_local.drop_in.draft_model"]
datas = collect_data_files("racer_local", excludes=["_pyinstaller"])
