"""What every command line here shares: an option never takes the next one for its value, and a commit is a hash.

Both come of an empty shell variable: ``--commit $SHA --no-page`` names the commit ``--no-page``.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

F = TypeVar("F", bound=Callable[..., Any])


class CommandLine(typer.Typer):
    """A typer application each of whose commands refuses an option in the place of a value."""

    def command(self, *names: Any, **settings: Any) -> Callable[[F], F]:
        return super().command(*names, **{"cls": _Guarded, **settings})


class _Guarded(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        for parameter in self.params:
            found = ctx.params.get(parameter.name)
            for value in found if isinstance(found, list | tuple) else [found]:
                # Numbers and flags have been converted, so these are names, globs and paths.
                if str(value).startswith("--"):
                    raise typer.BadParameter(
                        f"expected a value, got the option {str(value)!r}; was a shell variable empty?",
                        ctx=ctx,
                        param_hint=f"'{parameter.opts[0]}'",
                    )
        return rest


def require_commit(commit: str | None) -> str | None:
    """The commit, or None when none is given; raises typer.BadParameter for what is no hash."""
    if commit is None:
        return None
    from .ids import COMMIT_HASH  # what a record needs may be missing where only help is asked for

    if not COMMIT_HASH.fullmatch(commit):
        raise typer.BadParameter(
            f"expected 7 to 40 hex digits, got {commit!r}; git rev-parse HEAD prints them; leave --commit out where it "
            "is unknown"
        )
    return commit


CommitOption = Annotated[
    str | None,
    typer.Option("--commit", metavar="SHA", callback=require_commit, help="The commit, where there is no git."),
]

ProvidersOption = Annotated[
    str,
    typer.Option(
        metavar="all|none|NAME,...",
        help="Other projects' kernels to measure beside ours: installed ones, and those in RECOVERSSM_PEERS.",
    ),
]

ProviderOption = Annotated[
    list[str] | None,
    typer.Option(
        "--provider", metavar="FILE.py:CLASS", help="One in a file (docs/peers.md), whatever --providers says."
    ),
]


def peer_arguments(providers: str, files: Sequence[str]) -> list[str]:
    """The two options as they stand on a command line; nothing where none is asked for."""
    chosen = ["--providers", providers] if providers != "none" else []
    return chosen + [argument for file in files for argument in ("--provider", file)]
