"""``python -m ci gate``: a head against its base on one card, whole or in three parts."""

import random
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from benchmarks.harness.command_line import CommandLine
from ci.exits import Exit, UsageError
from ci.shell import JsonFlag, errors, print_json

from .plan import USUAL_BLOCKS

if TYPE_CHECKING:
    from .prepare import Request

app = CommandLine(
    rich_markup_mode=None,
    invoke_without_command=True,
    help="Judge a head against its base, or with prepare, run and judge the same in parts.",
    epilog="Examples: python -m ci gate --base main; python -m ci gate --base main --set smoke --gpus cpu",
)

CaseSet = Annotated[str, typer.Option("--set", help="Set of cases: smoke, pr, nightly or roofline.")]
Cases = Annotated[str, typer.Option("--case", metavar="GLOB", help="Only cases whose names match; commas for several.")]
Seed = Annotated[int | None, typer.Option(help="Of orders, inputs and blocks; at random when left out.")]
Blocks = Annotated[int, typer.Option(min=1, help="Blocks of four processes for every case.")]
ConfirmBlocks = Annotated[int, typer.Option(min=1, help="Fresh blocks for cases that look changed.")]
HarnessName = Annotated[
    str | None,
    typer.Option(metavar="base|head|own|COMMIT", help="Whose benchmarks measure. [base's; head's if it has none]"),
]
Archs = Annotated[str | None, typer.Option("--arch", help="Architectures to compile for, by commas. [ci/nightly.toml]")]
WithData = Annotated[
    str | None, typer.Option(metavar="STORE", help="Base: the nearest ancestor with an accepted night there.")
]
ApprovedBy = Annotated[
    str, typer.Option("--policy-approved-by", metavar="OWNER", help="Who has seen what the head changes of its judge.")
]
Gpus = Annotated[str | None, typer.Option(help="cpu, or the UUID of one GPU; the first if left out.")]
Wait = Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Wait so long for a GPU in use.")]
MaxSeconds = Annotated[
    float | None, typer.Option(min=0, help="Start no process that would end later; run again to go on. Exit code 130.")
]
ForkName = Annotated[
    str, typer.Option("--fork", metavar="yes|no", help="Fork processes from a parent that has imported.")
]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="What gate prepare made.")]
Out = Annotated[Path, typer.Option(help="Folder of the gate.")]


@app.callback()
def gate(  # the options are the documentation
    context: typer.Context,
    base: Annotated[
        str | None, typer.Option(help="Branch or commit; its merge base with the head is measured.")
    ] = None,
    head: Annotated[str, typer.Option(help="Commit; what is not committed is not measured.")] = "HEAD",
    case_set: CaseSet = "pr",
    pattern: Cases = "*",
    out: Out = Path("out/gate"),
    seed: Seed = None,
    blocks: Blocks = USUAL_BLOCKS["screen"],
    confirm_blocks: ConfirmBlocks = USUAL_BLOCKS["confirm"],
    harness: HarnessName = None,
    arch: Archs = None,
    with_data: WithData = None,
    approved_by: ApprovedBy = "",
    gpus: Gpus = None,
    wait: Wait = 0.0,
    max_seconds: MaxSeconds = None,
    fork: ForkName = "yes",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the gate in --out.")] = False,
    show_list: Annotated[bool, typer.Option("--list", help="Print the cases of this checkout and end.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run and end; nothing starts.")] = False,
    estimate: Annotated[bool, typer.Option("--estimate", help="Print how long it would take and end.")] = False,
    store: Annotated[str, typer.Option(help="Where --estimate finds nights.")] = "out/store",
    as_json: JsonFlag = False,
) -> None:
    """Build both commits, measure them in alternating processes on one GPU, judge, and write what was found to --out.

    0: nothing regressed; 1: regressed; 3: something is missing (data of the base, a case, an owner's approval);
    4: could not be judged (the head does not build, crashes, is wrong); 5: this machine; 130: run again to go on.
    """
    if context.invoked_subcommand is not None:
        return
    with errors(as_json):
        console = Console(stderr=True)
        request = _request(
            base or "", head, case_set, pattern, seed, blocks, confirm_blocks, harness, arch, with_data, approved_by
        )
        if show_list:
            _preview("list", request, store, gpus, as_json)
        if base is not None and resume:
            raise UsageError("--resume: expected no --base: both commits are those of --out")
        if base is None and not resume:
            raise UsageError("--base: expected a branch or commit", "python -m ci gate --base main")
        if dry_run or estimate:
            _preview("estimate" if estimate else "dry run", request, store, gpus, as_json)
        if not resume:
            _prepare(request, out, console)
        elif approved_by:
            _approve(out, approved_by)
        _run(out, gpus, wait, max_seconds, fork, console)
        _judge(out, as_json)


@app.command(epilog="Example: python -m ci gate prepare main HEAD --out out/gate")
def prepare(  # the options are the documentation
    base: Annotated[str, typer.Argument(help="Branch or commit; its merge base with the head is measured.")],
    head: Annotated[str, typer.Argument(help="Commit; what is not committed is not measured.")],
    out: Out = Path("out/gate"),
    case_set: CaseSet = "pr",
    pattern: Cases = "*",
    seed: Seed = None,
    blocks: Blocks = USUAL_BLOCKS["screen"],
    confirm_blocks: ConfirmBlocks = USUAL_BLOCKS["confirm"],
    harness: HarnessName = None,
    arch: Archs = None,
    with_data: WithData = None,
    approved_by: ApprovedBy = "",
    as_json: JsonFlag = False,
) -> None:
    """Put both trees and what judges them into a folder, which then needs no git. 3: no base, or nothing selected."""
    with errors(as_json):
        request = _request(
            base, head, case_set, pattern, seed, blocks, confirm_blocks, harness, arch, with_data, approved_by
        )
        plan = _prepare(request, out, Console(stderr=True))
        if as_json:
            print_json(plan)
        else:
            print(f"next: python -m ci gate run {out}")


@app.command(epilog="Example: python -m ci gate run out/gate --max-seconds 540")
def run(
    folder: Folder,
    gpus: Gpus = None,
    wait: Wait = 0.0,
    max_seconds: MaxSeconds = None,
    fork: ForkName = "yes",
    as_json: JsonFlag = False,
) -> None:
    """Measure what is missing in a prepared folder. Needs no git and no network.

    0: ready to be judged; 130: not all is measured, run it again.
    """
    with errors(as_json):
        _run(folder, gpus, wait, max_seconds, fork, Console(stderr=True))
        if as_json:
            print_json({"exit_code": 0, "next": f"python -m ci gate judge {folder}"})
        else:
            print(f"next: python -m ci gate judge {folder}")


@app.command(epilog="Example: python -m ci gate judge out/gate")
def judge(folder: Folder, approved_by: ApprovedBy = "", as_json: JsonFlag = False) -> None:
    """Judge what a folder holds and write every output into it. Needs no GPU; the same folder gives the same bytes."""
    with errors(as_json):
        if approved_by:
            _approve(folder, approved_by)
        _judge(folder, as_json)


def _request(
    base: str,
    head: str,
    case_set: str,
    pattern: str,
    seed: int | None,
    blocks: int,
    confirm_blocks: int,
    harness: str | None,
    arch: str | None,
    with_data: str | None,
    approved_by: str,
) -> "Request":
    from .prepare import Request

    return Request(
        base=base,
        head=head,
        case_set=case_set,
        pattern=pattern,
        seed=random.randrange(2**31) if seed is None else seed,
        screen_blocks=blocks,
        confirm_blocks=confirm_blocks,
        harness=harness,
        archs=[part.strip() for part in (arch or "").split(",") if part.strip()],
        with_data=with_data,
        approved_by=approved_by,
    )


def _preview(what: str, request: "Request", store: str, gpus: str | None, as_json: bool) -> NoReturn:
    from ci.measuring import ROOT
    from ci.preview import listing, show
    from ci.trees import Repository

    from . import preview

    if what == "list":
        facts = listing(request.case_set, request.pattern)
    elif what == "estimate":
        facts = preview.estimate(request, store, gpus)
    else:
        facts = preview.dry_run(request, Repository(ROOT), store, gpus)
    print_json(facts) if as_json else show(facts, Console())
    raise typer.Exit(0)


def _prepare(request: "Request", out: Path, console: Console) -> dict[str, object]:
    import msgspec

    from ci.measuring import ROOT
    from ci.trees import LIBRARY, PROGRAM, Repository

    from .findings import shortened
    from .prepare import prepare as fill

    repository = Repository(ROOT)
    plan = fill(request, out, repository)
    edited = repository.uncommitted((*LIBRARY, *PROGRAM)) if request.head == "HEAD" else []
    for line in (
        f"base {plan.base.commit[:12]} ({plan.base_found}): {plan.base.subject}",
        f"head {plan.head.commit[:12]} (distance {plan.distance}): {plan.head.subject}",
        f"set {plan.case_set}, cases: {len(plan.cases)}, seed {plan.seed}, measured by the program of {plan.harness}",
        *(
            ["policy changed, which an owner has to approve: the head's " + shortened(plan.policy_changes)]
            if plan.policy_changes
            else []
        ),
        *([f"not committed, and so not measured: {shortened(edited)}"] if edited else []),
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return {"folder": str(out), **msgspec.to_builtins(plan)}


def _approve(folder: Path, owner: str) -> None:
    from .judge import approve

    approve(folder, owner)


def _run(folder: Path, gpus: str | None, wait: float, max_seconds: float | None, fork: str, console: Console) -> None:
    from ci.config import choose_fork, load_nightly

    from .running import Options
    from .running import run as measure

    chosen = choose_fork(fork, load_nightly())
    if chosen == "mixed":
        raise UsageError("--fork: expected yes or no: both sides' processes begin alike, got 'mixed'")
    if measure(folder, Options(gpus, wait, max_seconds, fork=chosen), console) != Exit.PASS:
        console.print(f"go on: python -m ci gate run {folder}", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(int(Exit.INTERRUPTED))


def _judge(folder: Path, as_json: bool) -> None:
    import json

    from .judge import judge as decide
    from .outputs import terminal, write
    from .result import encode

    result = decide(folder)
    paths = write(result, folder)
    if as_json:
        print_json(json.loads(encode(result)))
    else:
        terminal.show(result, Console())
        print(f"written: {', '.join(path.name for path in paths)} in {folder}")
    raise typer.Exit(result.exit_code)
