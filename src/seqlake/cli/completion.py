"""`seqlake completion`: print the completion script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_ZSH = """compadd -U -V unsorted -S '' -- ${(M)completions:#*=}
        compadd -U -V unsorted -- ${completions:#*=}"""
_CHANGES = {  # no space after COLUMN=, whose value comes next
    "bash": ("COMPREPLY+=($value)", "COMPREPLY+=($value); [[ $value == *= ]] && compopt -o nospace"),
    "zsh": ("compadd -U -V unsorted -a completions", _ZSH),
    # Its script for fish takes what follows a comma for a description, and lists of columns have commas.
    "fish": ('string split ","', 'string split -m 1 ","'),
}


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script of SHELL.

    For bash: seqlake completion bash > ~/.local/share/bash-completion/completions/seqlake
    """
    from seqlake.cli._main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(cli, {}, "seqlake", "_SEQLAKE_COMPLETE")
    # click's own check of the bash version would run bash; the script itself is the same for all.
    text = script.source_template % script.source_vars()
    click.echo(text.replace(*_CHANGES[shell]))
