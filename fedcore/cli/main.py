"""The command `fedcore`: finds the sub-command, refuses wrong words in one line, and ends with its exit code."""

import sys
from difflib import get_close_matches
from importlib import import_module

import click

from fedcore import __version__
from fedcore.errors import InputError
from fedcore.pipeline.command import report_bad_input

COMMANDS = {
    "init": "init", "preview": "run", "plan": "run", "run": "run", "show": "show", "reproduce": "run",
    "promote": "promote", "predict": "predict", "export": "predict", "field": "field", "device": "device", "ui": "show",
    "prune": "status", "status": "status", "save": "save", "restore": "save", "docs": "show", "stage": "run",
}  # fmt: skip
"""Sub-command -> the module of this package that has it."""
INSTEAD = {
    "init": "options have dashes: --data, --label, --device; a path with blanks needs quotes",
    "predict": "a model is named by --model; a path with blanks needs quotes",
    "promote": "a version is named by --version, a run by --run", "show": "it takes no name; --history lists the runs",
}  # fmt: skip
"""Sub-command -> how that is said which is often typed as one word too many."""


class Commands(click.Group):
    """Imports a sub-command when it is called."""

    def list_commands(self, context: click.Context) -> list[str]:
        return [*COMMANDS]

    def get_command(self, context: click.Context, name: str) -> click.Command:
        if name not in COMMANDS:
            from fedcore.builders import suggestion

            context.fail(f"No such command {name!r}{suggestion(name, COMMANDS) or '.'}")
        command: click.Command = getattr(import_module(f"fedcore.cli.{COMMANDS[name]}"), name)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="fedcore %(version)s")
def fedcore() -> None:
    """Compare ways to combine models trained on many devices with unequal, private data.

    \b
    fedcore init my-sites --data machines.csv --label fault --device site
    cd my-sites
    fedcore preview

    What a run computes is written KEY=VALUE, as in params.yaml (`fedcore docs settings`). Everything else is an option.
    A command works in the project in the current folder. `fedcore docs` lists the pages of the documentation.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command; wrong words are bad input like any other, see :mod:`fedcore.pipeline.command`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    with report_bad_input(*["stopped"] * (arguments[:1] in (["plan"], ["preview"]))):  # these keep no steps
        try:  # not by click's own `main`, which would take signals for itself
            with fedcore.make_context("fedcore", arguments) as context:
                fedcore.invoke(context)
        except click.exceptions.Exit as leaving:
            sys.exit(leaving.exit_code)
        except click.exceptions.NoArgsIsHelpError as asked:
            sys.stdout.write(f"{asked.ctx.get_help()}\n")
        except click.UsageError as error:
            path = error.ctx.command_path if error.ctx else " ".join(["fedcore", *COMMANDS.keys() & arguments[:1]])
            more = ""
            if isinstance(error, click.NoSuchOption):  # click's guess takes the dashes for letters that are alike
                typed = error.option_name.lstrip("-")
                near = [name for name in error.possibilities or () if get_close_matches(name.lstrip("-"), [typed])]
                error = click.NoSuchOption(error.option_name, possibilities=near)
                more = " A setting has no dashes: KEY=VALUE." * (path.split()[-1] in ("run", "plan", "preview"))
            elif error.ctx and error.message.startswith("Got unexpected extra"):
                options = [of for of in error.ctx.command.params if isinstance(of, click.Option) and not of.is_flag]
                other = ", ".join(option.opts[0] for option in options)
                other = f"options with a value: {other}" if other else "it takes no more"
                more = f"; {INSTEAD.get(path.removeprefix('fedcore '), other)}."
            raise InputError(f"{error.format_message()}{more} See {path} --help.") from None
        except click.ClickException as error:
            raise InputError(error.format_message()) from None
