"""Before the first measuring process of a GPU: compile what the set launches, in parallel. It changes no result."""

import os
from collections.abc import Sequence

from .exits import Exit
from .gpus import Gpu
from .measuring import ROOT, Measuring
from .processes import run_child


def compile_first(gpu: Gpu, measuring: Measuring, command: Sequence[str]) -> None:
    """Run the compiling program; what it does not get done is compiled while measuring, and people are told."""
    plan, cap_s = measuring.state.plan, measuring.config.precompile_cap_s
    asked = [*command, "--set", plan.case_set, *plan.case_arguments, *plan.peer_arguments]

    def say(line: str) -> None:
        measuring.console.print(f"[{gpu.uuid[:12]}] {line}", markup=False, highlight=False, soft_wrap=True)

    ended = run_child(asked, env=gpu.child_env(os.environ), cwd=ROOT, cap_s=cap_s, on_line=say)
    if ended.code != Exit.PASS:
        say(f"not all was compiled ahead: {ended.describe(cap_s)}")
