"""What a gate would do, without starting anything."""

from typing import Any

from ci.gpus import CPU, choose_gpus, find_gpus
from ci.preview import Preview, select_cases
from ci.trees import Repository

from .plan import CPU_BLOCKS
from .prepare import Request, choose_base

PROCESSES = 4  # of a block


def dry_run(request: Request, repository: Repository, store: str, gpus: str | None) -> dict[str, Any]:
    """Both commits, the cases of this checkout, and how many processes that is on which card.

    Raises:
        UsageError, MissingDataError: as ``prepare``.
    """
    head = repository.resolve(request.head)
    base, found = choose_base(request, repository, head)
    seen = _preview(request, store, gpus, request.screen_blocks).dry_run()
    return {
        "base": f"{base[:12]} ({found})",
        "head": head[:12],
        "distance": repository.distance(base, head),
        **{name: seen[name] for name in ("set", "num_cases", "gpus", "seed")},
        **estimate(request, store, gpus),
    }


def estimate(request: Request, store: str, gpus: str | None) -> dict[str, Any]:
    """Seconds of the screen by GPU model, from nights of the set, whose processes also do what gates leave out."""
    on_cpu = choose_gpus(gpus, find_gpus())[0].uuid == CPU
    screen, confirm = (CPU_BLOCKS, CPU_BLOCKS) if on_cpu else (request.screen_blocks, request.confirm_blocks)
    return {
        "screen_processes": PROCESSES * screen,
        "confirm_processes_at_most": PROCESSES * confirm,
        "screen_estimate": _preview(request, store, gpus, screen).estimate()["estimate"],
    }


def _preview(request: Request, store: str, gpus: str | None, blocks: int) -> Preview:
    case_set, cases = select_cases(request.case_set, request.pattern)
    return Preview(case_set, request.pattern, cases, store, PROCESSES * blocks, gpus, request.seed)
