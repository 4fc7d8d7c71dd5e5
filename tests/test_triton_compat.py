"""Launches that skip Triton's own path pass what it would have passed; compiled for sm_90 where there is no GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton

from recoverssm import triton_compat
from recoverssm.triton_compat import KernelLaunch

ROOT = Path(__file__).parents[1]


def direct_launches(*options):
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "tests/direct_launches.py"), *options]
    done = subprocess.run(command, env=env, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_direct_launch_passes_what_triton_would():
    found = direct_launches()

    assert len(found) == 17
    assert [launch["launch_pdl"] for launch in found] == [False] * 16 + [True]
    for launch in found:
        assert launch["same"]
        assert launch["stream"] == 70  # of the tensors' device, which was not always the current one
        assert launch["hook_calls"] == 1
        assert launch["through_triton"] == (1 if triton_compat.IS_TESTED else 2)


def test_an_unknown_version_goes_through_triton_every_time():
    for launch in direct_launches("--unknown-version"):
        assert launch["same"]
        assert launch["through_triton"] == 2


def test_a_triton_that_nobody_tried_needs_no_gluon():
    program = (
        "import sys, triton\n"
        "triton.__version__, sys.modules['triton.experimental.gluon'] = '99.0.0', None  # importing it raises\n"
        "import recoverssm\n"
        "from recoverssm.ops import full_state\n"
        "from tests.test_launch import problem\n"
        "from recoverssm.launch import select\n"
        "print(*sorted(form.kernel is None for form in full_state.FORMS.values()))\n"
        "print(select(problem('full_state_verify'), full_state.FORMS).form)"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=env, text=True, capture_output=True, check=False)

    assert done.stdout.split() == ["False", "True", "recurrence"], done.stderr


def test_calls_that_share_a_launch_want_the_same_kernel_of_triton():
    """What a call is kept under holds all that Triton specialises on: types, ones, multiples of 16."""
    found = direct_launches("--specialisations")

    assert sum(calls for calls, _ in found) == 4000
    assert sum(calls for calls, _ in found if calls > 1) > 500  # else the test says little
    assert {kernels for _, kernels in found} == {1}


def test_what_is_not_compiled_is_refused_during_a_capture_and_what_is_gets_captured():
    found = direct_launches("--captures")

    refused = [call for call in found if call["refusal"]]
    assert {call["refusal"].partition(":")[0] for call in refused} >= {"_commit_plan_kernel", "_verify_wgmma_kernel"}
    assert all("warm_up(config, device)" in call["refusal"] for call in refused)
    for call in found:
        assert call["in_capture"] == (0 if call["refusal"] else 1)
        assert call["afterwards"] == 2


@pytest.mark.parametrize(
    ("hook", "debug", "watched"),
    [
        (triton.knobs.HookChain(), False, False),
        (None, False, False),
        (lambda _: None, False, True),
        (triton.knobs.HookChain(), True, True),
    ],
)
def test_who_watches_launches_is_noticed(hook, debug, watched, monkeypatch):
    monkeypatch.setattr(triton.knobs.runtime, "launch_enter_hook", hook)
    monkeypatch.setattr(triton.knobs.runtime, "debug", debug)

    assert triton_compat._is_watched() is watched


class Kernel:
    """Stands in for a kernel."""

    def __getitem__(self, grid):
        return lambda *arguments, **constants: (grid, arguments, constants)


def test_on_the_cpu_a_launch_goes_to_the_interpreter():
    launch = KernelLaunch(Kernel(), (2,), torch.device("cpu"), scalars=(0.5, 3), constants={"T": 4})

    assert launch.through_triton(("q", "k")) == ((2,), ("q", "k", 0.5, 3), {"T": 4, "enable_fp_fusion": True})
    assert launch((torch.zeros(1),), (0,)) is None
