import pytest

from benchmarks.harness.stopping import FEWEST_SAMPLES, QUEUED_SAMPLES, Sampling, num_next, stop_reason

NOISY = [100.0, 150.0] * 40


def test_quiet_samples_stop_at_the_least_number():
    sampling = Sampling(min_samples=10)

    assert stop_reason([100.0] * 9, 0.1, sampling) is None
    assert stop_reason([100.0] * 10, 0.1, sampling) == "precise: 10 samples, interval half width 0.00 %"


def test_noisy_samples_go_on_to_the_greatest_number():
    sampling = Sampling(min_samples=10, max_samples=20)

    assert stop_reason(NOISY[:19], 0.1, sampling) is None
    assert stop_reason(NOISY[:20], 0.1, sampling) == "most samples: 20 samples, interval half width 20.00 %"


def test_time_limit_stops_early_but_leaves_enough_for_an_interval():
    sampling = Sampling(max_s=1.0)

    assert stop_reason(NOISY[: FEWEST_SAMPLES - 1], 5.0, sampling) is None
    reason = stop_reason(NOISY[:FEWEST_SAMPLES], 5.0, sampling)
    assert reason is not None
    assert reason.startswith("time limit of 1 s: 6 samples")


def test_next_batch_fits_into_the_time_that_is_left():
    assert num_next(10, 0.5, 0.1, Sampling(min_samples=30, max_s=1.0)) == 5


def test_next_batch_never_fills_the_queue():
    assert num_next(0, 0.0, 1e-6, Sampling(min_samples=500, max_samples=500)) == QUEUED_SAMPLES


def test_next_batch_does_not_pass_the_greatest_number():
    assert num_next(28, 0.0, 1e-6, Sampling(min_samples=20, max_samples=30)) == 2


def test_next_batch_is_never_empty():
    assert num_next(25, 9.0, 0.1, Sampling(max_s=1.0)) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_samples": 5},
        {"max_samples": 29},
        {"max_samples": 1000},
        {"max_s": 0.0},
        {"min_sample_us": -1.0},
        {"warmup_s": -0.1},
    ],
)
def test_settings_that_cannot_work_are_named(wrong: dict[str, float]):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sampling(**wrong)
