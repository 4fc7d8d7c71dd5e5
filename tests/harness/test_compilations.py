from types import SimpleNamespace

from triton import knobs

from benchmarks.harness.compilations import CompilationCounter


def compile_kernel(name, cache_hit):
    """As Triton tells its listener."""
    times = SimpleNamespace(total=1_500_000)
    knobs.compilation.listener(src=None, metadata={"name": name}, metadata_group={}, times=times, cache_hit=cache_hit)


def test_compiled_kernels_are_counted_apart_from_those_in_the_cache():
    with CompilationCounter() as counter:
        compile_kernel("_verify_kernel", cache_hit=False)
        compile_kernel("_verify_kernel", cache_hit=False)
        compile_kernel("_conv_kernel", cache_hit=True)

    found = counter.summary()
    assert (found.num_compiled, found.num_cached, found.compile_s) == (2, 1, 3.0)
    assert found.compiled == ["_verify_kernel"]


def test_listener_that_was_there_hears_everything_and_is_put_back(monkeypatch):
    heard = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda **facts: heard.append(facts["metadata"]["name"]))
    before = knobs.compilation.listener

    with CompilationCounter():
        compile_kernel("_verify_kernel", cache_hit=True)

    assert heard == ["_verify_kernel"]
    assert knobs.compilation.listener is before
