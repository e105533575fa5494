"""``racer-local index``: make a phrase book of files, or bring one up to date."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from racer_local.cli.progress import Progress
from racer_local.errors import ConfigError
from racer_local.wording import counted

if TYPE_CHECKING:
    from racer_local.books.indexing import IndexReport
    from racer_local.books.phrase_book import PhraseBook

__all__ = ["command"]

_MB = 2**20


@click.command("index")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--output",
    "-o",
    metavar="NAME",
    required=True,
    help="Name of the book, or the path of an .npz file.",
)
@click.option(
    "--model",
    "-m",
    metavar="NAME_OR_PATH",
    help="Whose tokenizer to use.  [default: SmolLM2-135M-Instruct]",
)
@click.option("--size", type=float, default=64.0, show_default=True, help="Most MB of the book.")
@click.option(
    "--max-file",
    type=float,
    default=1.0,
    show_default=True,
    help="MB from which on a file is left out.",
)
@click.option("--all", "take_all", is_flag=True, help="Take what git ignores as well.")
@click.option("--debug", is_flag=True, help="Show a traceback if something fails.")
def command(paths: tuple[str, ...], **options: Any) -> int:
    """Make a phrase book of the text files under PATH, for --book.

    \b
    Examples:
      racer-local index src docs README.md -o myproject
      racer-local generate --book myproject "Explain how src/main.py starts."

    Drafts then come from these files too. Run it again after changes: files that have not changed
    are not read again, and files that are gone leave the book.
    """
    from racer_local.backend.model import LlamaModel
    from racer_local.books.indexing import index_files
    from racer_local.books.store import book_path
    from racer_local.books.text_files import find_files
    from racer_local.config import ModelConfig
    from racer_local.gguf.fingerprint import tokenizer_fingerprint
    from racer_local.models.store import resolve_model

    if not options["size"] > 0 or not options["max_file"] > 0:
        raise ConfigError("sizes must be positive")
    path = book_path(options["output"])
    with Progress("fetching the model", unit="MB", scale=1e-6) as progress:
        config = ModelConfig(path=resolve_model(options["model"], progress.show))
    mark = tokenizer_fingerprint(config.path)
    before = _earlier(path, mark)
    started = time.monotonic()
    found = find_files(
        [Path(each) for each in paths],
        int(options["max_file"] * _MB),
        use_gitignore=not options["take_all"],
    )
    model = LlamaModel(config, vocab_only=True)
    try:
        with Progress("indexing", unit="MB", scale=1 / _MB) as progress:
            book, report = index_files(
                found,
                model.tokenize_text,
                mark,
                model.n_vocab,
                before=before,
                max_bytes=int(options["size"] * _MB),
                on_progress=progress.show,
            )
    finally:
        model.close()
    if not book.files:
        raise ConfigError(_nothing(report))
    book.save(path)
    _tell(book, report, path, time.monotonic() - started)
    return 0


def _earlier(path: Path, mark: str) -> PhraseBook | None:
    """Load the book to bring up to date; a file that is no such book is not overwritten."""
    from racer_local.books.phrase_book import PhraseBook

    if not path.exists():
        return None
    try:
        return PhraseBook.load(path, mark)
    except ConfigError as error:
        raise ConfigError(f"{error} (remove the file, or choose another name)") from None


def _nothing(report: IndexReport) -> str:
    reasons = _left_out(report)
    hint = "; --all takes what git ignores" if "git-ignored" in reasons else ""
    return f"there is no text to index here ({reasons or 'no files'}){hint}"


def _left_out(report: IndexReport) -> str:
    return ", ".join(f"{n} {reason}" for reason, n in report.left_out.most_common())


def _tell(book: PhraseBook, report: IndexReport, path: Path, seconds: float) -> None:
    read = report.n_bytes_read / _MB
    click.echo(
        f"{counted(report.n_files, 'file')}, {len(book) / 1e6:.1f} million tokens in "
        f"{seconds:.1f} s; read {read:.1f} MB, {counted(report.n_unchanged, 'file')} unchanged",
        err=True,
    )
    if report.left_out:
        click.echo(f"left out: {_left_out(report)}", err=True)
    if report.n_cut or report.n_dropped:
        click.echo(
            f"to keep the size: {counted(report.n_dropped, 'file')} left out, repetitions left "
            f"out of {report.n_cut}; --size allows more",
            err=True,
        )
    click.echo(f"phrase book of {path.stat().st_size / _MB:.1f} MB: {path}", err=True)
