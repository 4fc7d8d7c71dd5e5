"""The engine of examples/: three ways to the same tokens, whatever happens to requests; nothing it keeps is idle."""

import ast
import os
import random
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import recoverssm
from examples.states import FullStates, RecoverSSMStates
from tests.toy_engine import add_requests, generated, make_engine, on

ROOT = Path(__file__).resolve().parent.parent
COMMITS = ["every_step", "deferred"]
SMALL = {"number": 2, "longest": 5, "seed": 2}  # an interpreter takes its time


@pytest.fixture(params=["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request):
    if request.param == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("kernels are compiled here: run with TRITON_INTERPRET=1")
    with on(request.param):
        yield request.param


@pytest.fixture
def by_reference():
    with on("reference"):
        yield


def serve(*arguments, number=8, seed=0, longest=20, **options):
    engine = make_engine(*arguments, **options)
    requests = add_requests(engine, number, seed, longest)
    num_steps = engine.run()
    assert [len(request.generated) for request in requests] == [request.max_new_tokens for request in requests]
    return generated(requests), num_steps


@cache
def plain_tokens(backend="reference", **size):
    """What every way has to give: no drafts, one state, by the reference."""
    with on("reference"):
        return serve(FullStates, backend=backend, draft_tokens=0, **size)[0]


def test_one_state_a_state_per_token_and_no_drafts_give_the_same_tokens(backend):
    size = SMALL if backend == "cpu" else {}

    recovered, num_steps = serve(RecoverSSMStates, backend=backend, **size)
    deferred, _ = serve(RecoverSSMStates, backend=backend, commit="deferred", **size)
    full, _ = serve(FullStates, backend=backend, **size)
    plain, num_plain_steps = serve(FullStates, backend=backend, draft_tokens=0, **size)

    assert recovered == deferred == full == plain == plain_tokens(backend, **size)
    assert num_steps < num_plain_steps  # drafts were accepted


@pytest.mark.usefixtures("by_reference")
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("draft_tokens", [0, 1, 7])
def test_windows_of_any_length_give_the_same_tokens(draft_tokens, seed):
    for kind in (RecoverSSMStates, FullStates):
        assert serve(kind, draft_tokens=draft_tokens, seed=seed)[0] == plain_tokens(seed=seed)


@pytest.mark.parametrize("commit", COMMITS)
def test_batches_padded_to_captured_sizes_give_the_same_tokens(commit, backend):
    """On a GPU verify and convolution replay from graphs there, with slots, counts and rows of each step."""
    size = SMALL if backend == "cpu" else {}

    padded, _ = serve(backend=backend, cuda_graph_sizes=(3, 4), commit=commit, **size)

    assert padded == plain_tokens(backend, **size)


@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize(
    ("backend", "block_size", "num_slots"),
    [
        ("reference", 8, 30),
        ("reference", 3, 12),
        ("reference", 1, 16),
        ("cpu", 3, 12),
        pytest.param("cuda", 3, 12, marks=pytest.mark.gpu),
    ],
    indirect=["backend"],
)
def test_prefix_caching_gives_the_same_tokens(backend, block_size, num_slots, commit):
    """Blocks above and below the window's length; the smaller pools make requests preempt each other."""
    size = SMALL if backend == "cpu" else {}
    options = {"cache_mode": "align", "block_size": block_size, "num_slots": num_slots, "commit": commit}

    assert serve(backend=backend, **options, **size)[0] == plain_tokens(backend, **size)


@pytest.mark.usefixtures("by_reference")
@pytest.mark.parametrize("kind", [RecoverSSMStates, FullStates])
def test_requests_that_are_preempted_come_back_to_the_same_tokens(kind):
    engine = make_engine(kind, num_slots=3)
    requests = add_requests(engine, 6)
    preempted = []
    stop = engine._preempt
    engine._preempt = lambda request: (preempted.append(len(request.generated)), stop(request))
    for _ in range(3):
        engine.step()
    for request in list(engine.running):
        engine._preempt(request)  # as for want of a slot; with one slot a request there is always one
    engine.run()

    assert any(preempted)
    assert generated(requests) == plain_tokens(number=6)


@pytest.mark.usefixtures("by_reference")
@pytest.mark.parametrize("kind", [RecoverSSMStates, FullStates, "with blocks"])
@pytest.mark.parametrize("meanwhile", [False, True], ids=["between steps", "between verify and commit"])
def test_an_aborted_request_leaves_the_others_their_tokens(meanwhile, kind):
    engine = make_engine(**CACHED) if kind == "with blocks" else make_engine(kind)
    requests = add_requests(engine, 8)
    aborted = set()
    num_steps = 0

    def abort():
        """Every third step the longest-running request, which then has accepted drafts to commit."""
        if num_steps % 3 == 2 and engine.running and len(aborted) < 4:
            aborted.add(engine.running[0])
            engine.abort(engine.running[0])

    while engine.running or engine.waiting:
        engine.step(abort if meanwhile else lambda: None)
        if not meanwhile:
            abort()
        num_steps += 1

    assert len(aborted) == 4
    assert any(request.generated for request in aborted)
    for request, tokens in zip(requests, plain_tokens(), strict=True):
        assert request.generated == (tokens[: len(request.generated)] if request in aborted else tokens)


@pytest.mark.usefixtures("by_reference")
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("commit", COMMITS)
def test_whatever_happens_to_requests_tokens_stay_what_they_are(commit, seed):
    """Aborts and preemptions at any time, blocks of any size, pools that are too small, little room in a step."""
    pick = random.Random(seed)
    block_size = pick.choice((1, 2, 3, 5, 8))
    num_slots = 9 + 8 // block_size + pick.choice((0, 20))  # a window of 8 tokens fits
    options = {"cache_mode": "align", "block_size": block_size, "cuda_graph_sizes": pick.choice(((), (1, 3)))}
    options |= {"commit": commit, "debug": True}
    engine = make_engine(draft_tokens=pick.choice((1, 3, 7)), num_slots=num_slots, **options)
    engine.token_budget = pick.choice((5, 12, 24))
    requests = add_requests(engine, 8, seed)
    aborted = set()

    def abort_one():
        if pick.random() < 0.1 and (engine.running or engine.waiting):
            aborted.add(request := pick.choice([*engine.running, *engine.waiting]))
            engine.abort(request)

    while engine.running or engine.waiting:
        engine.step(abort_one)
        abort_one()
        if pick.random() < 0.1 and engine.running:
            engine._preempt(pick.choice(engine.running))

    for request, tokens in zip(requests, plain_tokens(seed=seed), strict=True):
        assert request.generated == (tokens[: len(request.generated)] if request in aborted else tokens)
    assert not +engine.slots._holders  # nothing leaked


# --- all that is kept matters


def tokens_after(spoil, *, num_known=4, num_steps=8):
    """What one request generates in the steps after ``spoil(states, slot)``."""
    engine = make_engine()
    request = engine.add(list(range(3, 14)), max_new_tokens=40, seed=5)
    while len(request.generated) < num_known:
        engine.step()
    num_known = len(request.generated)
    (slot,) = request.blocks.values()
    spoil(engine.states, slot)
    for _ in range(num_steps):
        engine.step()
    return request.generated[num_known:]


@pytest.fixture(scope="module")
def untouched():
    with on("reference"):
        return tokens_after(lambda states, slot: None)


@pytest.mark.usefixtures("by_reference")
@pytest.mark.parametrize("head", range(2))
@pytest.mark.parametrize("layer", range(2))
def test_logits_depend_on_every_head(layer, head):
    def logits(sign):
        engine = make_engine()
        engine.add(list(range(3, 10)), max_new_tokens=4, seed=5)
        engine.step()
        engine.states.pools[layer][:, head] *= sign
        seen = []
        forward = engine._forward
        engine._forward = lambda *arguments: seen.append(forward(*arguments)) or seen[-1]
        engine.step()
        return seen[0]

    change = (logits(-1) - logits(1)).abs().amax(-1)
    assert (change > 0.1).all()


@pytest.mark.usefixtures("by_reference")
@pytest.mark.parametrize("layer", range(2))
def test_a_flipped_state_changes_a_token_within_eight_steps(layer, untouched):
    def flip(states, slot):
        states.pools[layer][slot] *= -1

    assert tokens_after(flip) != untouched


@pytest.mark.usefixtures("by_reference")
@pytest.mark.parametrize("position", range(3))
@pytest.mark.parametrize("layer", range(2))
def test_a_flipped_row_of_conv_history_changes_a_token_within_eight_steps(layer, position, untouched):
    def flip(states, slot):
        states.windows[layer][slot, position] *= -1

    assert tokens_after(flip) != untouched


@pytest.mark.usefixtures("by_reference")
def test_what_lies_behind_the_history_and_in_other_slots_changes_nothing(untouched):
    def spoil(states, slot):
        for pool, window, records in zip(states.pools, states.windows, states.records, strict=True):
            others = [other for other in range(len(pool)) if other != slot]
            pool[others], window[others], window[slot, 3:] = float("nan"), float("nan"), float("nan")
            records.correction[:], records.key_gate[:] = float("nan"), float("nan")

    assert tokens_after(spoil) == untouched


# --- a conversation that goes on: its second request resumes at a block that decoding has filled

CACHED = {"cache_mode": "align", "block_size": 4, "num_slots": 40}


def second_turn(spoil, **options):
    """Generated tokens of a request that begins with all of an earlier one; ``spoil(states, slot)`` in between."""
    engine = make_engine(**options)
    first = engine.add(list(range(3, 9)), max_new_tokens=20, seed=5)
    engine.run()
    second = engine.add([*first.tokens, 11, 12], max_new_tokens=30, seed=6)
    length, slot = engine.slots.find(second.tokens, engine.block_size)
    if length:
        assert length == 24  # of 6 tokens of prompt and 20 of output, the last of which no state has seen
        engine.slots.release(slot)
        spoil(engine.states, slot)
    engine.step()
    assert second.num_computed >= length
    for _ in range(8):
        engine.step()
    return second.generated


@pytest.fixture(scope="module")
def continued():
    with on("reference"):
        return second_turn(lambda states, slot: None, **CACHED)


def test_a_conversation_goes_on_from_a_block_that_decoding_filled(continued):
    with on("reference"):
        afresh = second_turn(None, draft_tokens=0)

    num_common = min(len(afresh), len(continued))
    assert num_common >= 4
    assert continued[:num_common] == afresh[:num_common]


@pytest.mark.usefixtures("by_reference")
@pytest.mark.parametrize("layer", range(2))
def test_a_flipped_state_at_a_boundary_changes_a_token_within_eight_steps(layer, continued):
    def flip(states, slot):
        states.pools[layer][slot] *= -1

    assert second_turn(flip, **CACHED) != continued


@pytest.mark.usefixtures("by_reference")
@pytest.mark.parametrize("position", range(3))
@pytest.mark.parametrize("layer", range(2))
def test_a_flipped_row_of_history_at_a_boundary_changes_a_token_within_eight_steps(layer, position, continued):
    def flip(states, slot):
        states.windows[layer][slot, position] *= -1

    assert second_turn(flip, **CACHED) != continued


def test_the_example_uses_public_names_only():
    imported = {
        alias.name
        for path in (ROOT / "examples").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("recoverssm")
        for alias in node.names
    }

    assert imported
    assert imported <= {*recoverssm.__all__, *recoverssm.reference.__all__}


def test_the_program_runs():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "examples.engine"]

    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    assert "the same tokens each time" in done.stdout, done.stderr
