"""Program: launches every kernel that this card takes once or twice, under NVIDIA's compute-sanitizer.

    python -m tests.sanitize             memcheck and racecheck; exit codes 0 clean, 1 findings, 5 it could not be run
    python -m tests.sanitize --launch    the launches alone

Not a test: the tool is no part of the environments that tests run in, and takes minutes.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

CLEAN, FOUND, COULD_NOT = 0, 1, 5
FINDINGS = 97  # the tool's exit code for them, unlike any of the program's own
TOOLS = {"memcheck": r"ERROR SUMMARY: 0 errors", "racecheck": r"RACECHECK SUMMARY: 0 hazards"}
PLACES = ("/usr/local/cuda/bin", "/opt/cuda/bin")
LIMIT_S = 900

MMA = {"BV": 128, "CAUSAL_BLOCKS": False, "SLICE": 16, "AHEAD": 2, "EVICT": False, "maxnreg": 168}


def launch_all() -> int:
    """Every kernel on small windows with short rows and rows without a slot; returns how many calls there were."""
    import pytest
    import torch

    from recoverssm import CommitContext, RecordRows, full_state_verify, triton_compat
    from recoverssm.launch import device_arch
    from recoverssm.ops.verify import can_take_history
    from tests.forms import use_form
    from tests.test_full_state import FullStateWindow
    from tests.test_verify import run_verify
    from tests.test_verify_wgmma import wide
    from tests.waiting import Waiting
    from tests.windows import RAGGED, Window, int32

    arch, calls = device_arch(torch.device("cuda", torch.cuda.current_device())), 0
    cases = [
        wide((8, 3, 0, 8), (2, 1, 3, 0), 8, num_heads=2),
        wide((9, 4), (2, 1), 9, num_heads=2, state_dtype=torch.bfloat16, lower_bound=None),
        RAGGED,  # of the portable forms
    ]
    for case in cases:
        window, full = Window(case, "cuda"), FullStateWindow(case, "cuda")
        run_verify(window)
        if arch == 90 and triton_compat.IS_TESTED and case is not RAGGED:
            run_verify(window, enable_pdl=True)
            run_verify(window, enable_pdl=True)
            calls += 2
        num_slots, _, _, key_dim = window.checkpoint_states[0].shape
        conv = torch.zeros(num_slots, 2 + case.spec_query_len, 3 * case.num_heads * key_dim, device="cuda").bfloat16()
        context = CommitContext(
            window.checkpoint_states, window.records, [conv], window.gate, max_num_rows=len(case.slots)
        )
        context.commit(int32(case.query_lens, "cuda"), window.query_start_loc, window.state_indices)
        full_state_verify(*full.activations, full.pool, *full.arguments(), out=full.out)
        held = Waiting(case, "cuda", [2] * len(case.slots))
        window, rows = held.window, held.rows
        context = CommitContext(
            window.checkpoint_states, [held.records], [conv], window.gate, max_num_rows=len(case.slots)
        )
        if not can_take_history(window.checkpoint_states[0], held.records, case.lower_bound):
            rows = RecordRows(rows.written)
        held.verify(rows=rows)
        lens = int32([0] * held.records.correction.shape[0], "cuda")
        arguments = (int32(case.query_lens, "cuda"), window.query_start_loc, window.state_indices)
        context.commit(*arguments, record_rows=rows, waiting_lens=lens)
        context.commit_waiting(rows.written, lens, window.state_indices)
        calls += 12
    if arch >= 80 and triton_compat.IS_TESTED:
        with pytest.MonkeyPatch.context() as patch:
            use_form(patch, "verify", "mma", "cuda", **MMA)
            run_verify(Window(cases[0], "cuda"))
        calls += 1
    torch.cuda.synchronize()
    return calls


def judge(tool: str, code: int, output: str) -> tuple[int, str]:
    """Exit code and a line for people from what compute-sanitizer returned and said."""
    if code == FINDINGS:
        return FOUND, f"{tool}: findings"
    if code == 0 and re.search(TOOLS[tool], output):
        return CLEAN, f"{tool}: clean"
    last = output.strip().splitlines()[-1:] or ["it said nothing"]
    return COULD_NOT, f"{tool}: could not be run here (exit code {code}): {last[0]}"


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Run the tools one after another; the graver outcome counts."""
    found = shutil.which("compute-sanitizer", path=os.pathsep.join((os.environ.get("PATH", ""), *PLACES)))
    if found is None:
        say("compute-sanitizer: not found; it comes with the CUDA toolkit, put its folder into PATH")
        return COULD_NOT
    # Without torch's allocator in between, what lies behind a tensor belongs to nobody and memcheck sees it touched.
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    program, codes = [sys.executable, "-m", "tests.sanitize", "--launch"], []
    root = Path(__file__).parents[1]
    for tool in TOOLS:
        command = [found, "--tool", tool, "--error-exitcode", str(FINDINGS), *program]
        try:
            done = subprocess.run(
                command, cwd=root, env=env, text=True, capture_output=True, check=False, timeout=LIMIT_S
            )
            code, line = judge(tool, done.returncode, done.stdout + done.stderr)
            output = done.stdout
        except subprocess.TimeoutExpired:
            code, line, output = COULD_NOT, f"{tool}: not done after {LIMIT_S} s", ""
        codes.append(code)
        say(line if code == CLEAN else f"{output}\n{line}")
    return FOUND if FOUND in codes else max(codes)


if __name__ == "__main__":
    if sys.argv[1:] == ["--launch"]:
        say(f"{launch_all()} calls done")
    else:
        sys.exit(main())
