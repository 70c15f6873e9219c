"""`kubevirt-scheduler help`: print what --help prints."""

import click


@click.command("help", short_help="print the help of a command")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def help_(context: click.Context, words: tuple[str, ...]) -> None:
    """Print the help of all commands, or of one, as --help does.

    \b
    Examples:
      kubevirt-scheduler help
      kubevirt-scheduler help report
      kubevirt-scheduler help certs status
    """  # noqa: D301 (click's mark for a block whose line breaks are kept)
    above = context.find_root()
    for word in words:
        group = above.command
        command = group.get_command(above, word) if isinstance(group, click.Group) else None
        if command is None:
            raise click.UsageError(f"no command {' '.join(words)!r}; to list all: kubevirt-scheduler help")
        above = click.Context(command, info_name=word, parent=above)
    click.echo(above.get_help())
