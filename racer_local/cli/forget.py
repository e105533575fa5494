"""``racer-local forget``: remove what was remembered of conversations."""

from __future__ import annotations

import click

__all__ = ["command"]


@click.command("forget")
@click.option("--debug", is_flag=True, help="Show a traceback if something fails.")
def command(debug: bool) -> int:
    """Remove all conversations that --remember kept, of every model.

    \b
    Example:
      racer-local forget

    Phrase books made with index stay; they are files of their own.
    """
    from racer_local.books.store import forget_memory

    gone = forget_memory()
    for path in gone:
        click.echo(f"removed {path}", err=True)
    if not gone:
        click.echo("nothing was remembered", err=True)
    return 0
