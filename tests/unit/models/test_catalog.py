"""The list of models is sound, and is found from a checkout and from a wheel alike."""

import re
from pathlib import Path

import pytest

from racer_local.errors import ConfigError
from racer_local.models import catalog
from racer_local.models.catalog import checkout_folder, load_catalog
from racer_local.models.hub.choose import Wanted, parse_wanted
from racer_local.models.stores.base import quant_of

ENTRY = """
default = "m"
[models.m]
title = "M"
file = "m.gguf"
size_bytes = 1
sha256 = "{sha}"
licence = "MIT"
note = "n"
source = "s"
[[models.m.parts]]
requirement = "m==1"
member = "m/m.gguf"
download_bytes = 1
""".format(sha="0" * 64)


def test_the_default_model_is_in_it_and_free() -> None:
    entry = load_catalog().models[load_catalog().default]
    assert entry.file == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert entry.licence == "Apache-2.0"


@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "gemma-3-270m"])
def test_every_entry_is_complete(name: str) -> None:
    entry = load_catalog().models[name]
    assert re.fullmatch(r"[0-9a-f]{64}", entry.sha256)
    assert entry.size_bytes > 50e6
    assert entry.licence
    # An exact version: what is fetched must be what was checked.
    assert all(re.fullmatch(r"[a-z0-9-]+==[\d.]+", part.requirement) for part in entry.parts)
    assert 0 < entry.download_bytes < entry.size_bytes


def test_the_test_model_says_what_it_may_be_used_for() -> None:
    assert "tests and benchmarks only" in load_catalog().models["gemma-3-270m"].note


def test_names_are_found_in_any_case() -> None:
    assert load_catalog().find(" Gemma-3-270M ") is load_catalog().models["gemma-3-270m"]
    assert load_catalog().find("gemma") is None


def test_the_notes_for_people_name_every_model() -> None:
    folder = checkout_folder()
    assert folder is not None
    readme = (folder / "models" / "README.md").read_text(encoding="utf-8")
    for entry in load_catalog().models.values():
        assert entry.name in readme
        assert entry.file in readme
        assert entry.licence in readme
        assert entry.sha256 in readme


def test_an_installed_package_has_its_own_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "racer_local"
    package.mkdir(parents=True)
    (package / "catalog.toml").write_text(ENTRY, encoding="utf-8")
    monkeypatch.setattr(catalog, "_PACKAGE", package)
    assert checkout_folder() is None
    load_catalog.cache_clear()
    try:
        assert load_catalog().default == "m"
    finally:
        load_catalog.cache_clear()


def test_the_wheel_takes_the_copy_along() -> None:
    folder = checkout_folder()
    assert folder is not None
    project = (folder / "pyproject.toml").read_text(encoding="utf-8")
    assert '"models/catalog.toml" = "racer_local/catalog.toml"' in project


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('default = "m"', 'default = "x"'),
        ('file = "m.gguf"', 'file = "../m.gguf"'),
        ('file = "m.gguf"', 'file = "m.exe"'),
        ('sha256 = "', 'sha256 = "1'),
        ('member = "m/m.gguf"', 'number = "m/m.gguf"'),
        ("size_bytes = 1", 'size_bytes = "many"'),
        ("[models.m]", "[models.M]"),
        ('title = "M"\n', ""),
        ("[models.m]", "[models.m"),
        ("[[models.m.parts]]", "[[models.m.pieces]]"),
    ],
)
def test_a_damaged_list_is_refused_by_name(tmp_path: Path, old: str, new: str) -> None:
    assert old in ENTRY
    path = tmp_path / "catalog.toml"
    path.write_text(ENTRY.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"catalog\.toml"):
        load_catalog(path)


def test_a_missing_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_catalog(tmp_path / "none.toml")


HUB = [entry for entry in load_catalog().models.values() if entry.repo]


def test_there_is_a_choice_for_every_laptop() -> None:
    assert len(HUB) >= 12
    sizes = [entry.size_bytes for entry in HUB]
    assert min(sizes) < 0.5e9
    assert 8e9 < max(sizes) < 12e9


@pytest.mark.parametrize("entry", HUB, ids=lambda entry: entry.name)
def test_every_model_of_the_hub_is_complete(entry: catalog.ModelEntry) -> None:
    assert parse_wanted(f"{entry.repo}:{entry.quant}") == Wanted(entry.repo, entry.quant)
    assert quant_of(f"x-{entry.quant}.gguf") == entry.quant
    assert "GB of memory" in entry.note
    assert entry.source.startswith("https://")
    assert not entry.parts
    assert not entry.file
    assert load_catalog().find(entry.name.upper()) == entry


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('repo = "o/r"', 'repo = "r"'),
        ('repo = "o/r"', 'repo = "../../r"'),
        ('quant = "Q4_0"', 'quant = ""'),
        ('quant = "Q4_0"', ""),
        ('quant = "Q4_0"', 'quant = "Q4_0"\nfile = "x.gguf"'),
        ('quant = "Q4_0"', 'quant = "Q4_0"\nsha256 = "12"'),
    ],
)
def test_a_damaged_entry_of_the_hub_is_refused(tmp_path: Path, old: str, new: str) -> None:
    start = ENTRY.partition("[[models.m.parts]]")[0]
    start = start.replace('file = "m.gguf"', 'repo = "o/r"\nquant = "Q4_0"')
    start = start.replace(f'sha256 = "{"0" * 64}"\n', "")
    path = tmp_path / "catalog.toml"
    path.write_text(start, encoding="utf-8")
    assert load_catalog(path).models["m"].repo == "o/r"
    assert old in start
    (tmp_path / "bad.toml").write_text(start.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        load_catalog(tmp_path / "bad.toml")
