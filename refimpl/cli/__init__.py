"""The command line: ``python -m refimpl COMMAND``. It stands above the floors and may use all.

Each command is a module with ``HELP``, ``add_arguments(parser)`` and ``run(options) -> exit code``,
and imports torch only inside ``run``: asking for help must not take seconds.

Exit codes: 0 done, 1 something on this machine is missing or broken, 2 a value was wrong; 1 and 2
come with one line on stderr.
"""

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import refimpl
from refimpl.cli import doctor, fetch, generate, plan, roofline, size, spec, xray

COMMANDS = {
    "size": size,
    "roofline": roofline,
    "plan": plan,
    "spec": spec,
    "generate": generate,
    "xray": xray,
    "fetch": fetch,
    "doctor": doctor,
}
PROGRAM = "python -m refimpl"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if sys.stdout is None:  # started with stdout closed: nobody wants to read
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    try:
        options = _parse(arguments)
        return options.run(options)
    except BrokenPipeError:
        sys.stdout = None  # the reader has gone: nothing is left to flush at exit
        return 1
    except KeyboardInterrupt:
        return 130
    except ValueError as error:
        return _complain(error, 2)
    except ImportError as error:
        return _complain(f"{error}; install what the book needs: {doctor.INSTALL}", 1)
    except (OSError, RuntimeError) as error:
        return _complain(error, 1)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2


def near(word: str, known: Sequence[str]) -> str:
    """`` (did you mean …?)`` for a word close to a known one, else the known ones."""
    close = difflib.get_close_matches(word.lower(), known, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(close)}?" if close else f"; there is {', '.join(known)}"


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, with near names for unknown options."""

    def __init__(self, **settings: Any) -> None:
        self.options: list[str] = []
        super().__init__(allow_abbrev=False, **settings)

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        self.options += [name for name in names if name.startswith("--")]
        return super().add_argument(*names, **settings)

    def error(self, message: str) -> NoReturn:
        raise ValueError(" ".join(message.split()))


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(prog=PROGRAM, description="Decoding a language model, built and measured.")
    parser.add_argument("--version", action="version", version=f"refimpl {refimpl.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    chosen: dict[str, Parser] = {}
    for name, module in COMMANDS.items():
        chosen[name] = commands.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_arguments(chosen[name])
        chosen[name].set_defaults(run=module.run, command=name)
    if not arguments:
        raise ValueError(f"name a command: {', '.join(COMMANDS)}; --help says more")
    if not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        raise ValueError(f"unknown command {arguments[0]!r}{near(arguments[0], list(COMMANDS))}")
    options, extra = parser.parse_known_args(arguments)
    if extra:
        word = extra[0].partition("=")[0]
        known = (chosen[options.command] if hasattr(options, "command") else parser).options
        hint = "; quote a prompt of several words" if options.command == "generate" else ""
        hint = near(word, known) if word.startswith("-") else hint
        raise ValueError(f"unexpected argument {word!r}{hint}")
    if not hasattr(options, "run"):
        raise ValueError(f"name a command: {', '.join(COMMANDS)}; --help says more")
    return options


def _complain(error: Exception | str, code: int) -> int:
    text = " ".join(str(error).split()) or type(error).__name__
    print(f"{PROGRAM}: {text}", file=sys.stderr)
    return code
