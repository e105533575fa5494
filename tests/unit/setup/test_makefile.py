"""Make hands everything on unharmed, in whatever shell and with whatever characters."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

posix_only = pytest.mark.skipif(os.name == "nt", reason="POSIX shell")


@posix_only
@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
class TestMake:
    @pytest.fixture
    def checkout(self, tmp_path: Path) -> Path:
        """Make a checkout whose set-up does nothing and whose program shows its arguments."""
        root = tmp_path / "check out"
        setup = root / "racer_local" / "setup"
        setup.mkdir(parents=True)
        shutil.copy(ROOT / "Makefile", root)
        for folder in (setup, setup.parent):
            (folder / "__init__.py").write_text("")
        (setup / "env.py").write_text(
            "import sys, pathlib; pathlib.Path('asked').write_text(repr(sys.argv[1:]))"
        )
        program = root / ".venv" / "bin" / "racer-local"
        program.parent.mkdir(parents=True)
        program.write_text(
            f"#!{sys.executable}\nimport json, sys\n"
            "open('ran', 'w', encoding='utf-8').write(json.dumps(sys.argv[1:]))\n"
        )
        program.chmod(0o755)
        return root

    @pytest.fixture(autouse=True)
    def clean_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # A make that runs these tests must not hand its own settings on.
        names = "MAKEFLAGS MFLAGS MAKELEVEL PROMPT MODEL BACKEND PREBUILT ARGS PYTHON"
        for name in names.split():
            monkeypatch.delenv(name, raising=False)

    def make(self, root: Path, *arguments: str, **environment: str) -> list[str]:
        subprocess.run(
            ["make", *arguments],
            cwd=root,
            env={**os.environ, "PYTHON": sys.executable, **environment},
            check=True,
            capture_output=True,
        )
        result: list[str] = json.loads((root / "ran").read_text(encoding="utf-8"))
        return result

    @pytest.mark.parametrize(
        "prompt",
        [
            "Hello",
            "It's \"quoted\" and 'quoted'",
            "costs $5, or $$5, or ${HOME} or $(shell touch pwned) or `touch pwned`",
            "你好 🤖 naïve",
            "back\\slash \\n # no comment; ls & | > < * ? [a] {b,c} !",
            "-starts-with-a-dash",
            "two\nlines",
            "100% = x",
        ],
    )
    def test_any_prompt_arrives_unharmed(self, checkout: Path, prompt: str) -> None:
        ran = self.make(checkout, "run", f"PROMPT={prompt}")
        assert ran[0] == "generate"
        assert ran[-2:] == ["--", prompt]
        assert not (checkout / "pwned").exists()

    def test_the_default_prompt_and_options(self, checkout: Path) -> None:
        # Some shells export a variable of this name.
        ran = self.make(checkout, "run", PROMPT="$P$G")
        assert ran[1:6] == ["--compare", "--max-tokens", "200", "--temp", "0"]
        assert "$P$G" not in ran[-1]
        assert "--models=smollm2-135m-instruct" in (checkout / "asked").read_text()

    def test_a_model_of_ones_own(self, checkout: Path) -> None:
        ran = self.make(checkout, "run", "MODEL=my $1 models/模型's.gguf")
        assert ran[ran.index("--model") + 1] == "my $1 models/模型's.gguf"
        assert "'--models='" in (checkout / "asked").read_text()

    def test_back_end_and_wheels_are_handed_on(self, checkout: Path) -> None:
        self.make(checkout, "run", "BACKEND=cuda", "PREBUILT=1")
        asked = (checkout / "asked").read_text()
        assert "'--backend=cuda', '--prebuilt=1'" in asked

    @pytest.mark.parametrize("target", ["chat", "serve", "ui", "bench", "verify"])
    def test_other_targets(self, checkout: Path, target: str) -> None:
        ran = self.make(checkout, target, "ARGS=--max-tokens 5", "MODEL=m.gguf")
        assert ran[0] == target
        assert "--max-tokens" in ran
        assert "m.gguf" in ran

    @pytest.mark.parametrize("target", ["test", "test-all"])
    def test_tests_run_after_their_set_up(self, checkout: Path, target: str) -> None:
        # The interpreter of the environment shows what it is called with.
        shutil.move(
            checkout / ".venv" / "bin" / "racer-local", checkout / ".venv" / "bin" / "python"
        )
        ran = self.make(checkout, target, "ARGS=-x -k 'some name'")
        chosen = ["-m", "slow or not slow"] if target == "test-all" else []
        assert ran == ["-m", "pytest", "-ra", *chosen, "-x", "-k", "some name"]
        assert "gemma-3-270m" in (checkout / "asked").read_text()

    def test_a_failed_set_up_stops(self, checkout: Path) -> None:
        (checkout / "racer_local" / "setup" / "env.py").write_text("raise SystemExit(1)")
        with pytest.raises(subprocess.CalledProcessError):
            self.make(checkout, "run")
        assert not (checkout / "ran").exists()

    def test_no_python(self, checkout: Path) -> None:
        done = subprocess.run(
            [shutil.which("make"), "run"],
            cwd=checkout,
            env={"PATH": str(checkout)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode != 0
        assert "no Python 3.10 or newer was found" in done.stderr

    def test_help_is_the_default(self, checkout: Path) -> None:
        done = subprocess.run(["make"], cwd=checkout, capture_output=True, text=True, check=True)
        targets = {"run", "test", "test-all", "check", "setup", "chat", "ui", "serve", "bench"}
        for target in (*targets, "verify"):
            assert target in done.stdout


def test_continuous_integration_runs_make_test() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert script.rstrip().endswith("exec make test")
    if os.name != "nt":
        assert os.access(ROOT / ".ci" / "run", os.X_OK)
