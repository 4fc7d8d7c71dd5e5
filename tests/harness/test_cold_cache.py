import pytest

from benchmarks.harness.cold_cache import num_rotations

MIB = 2**20


@pytest.mark.parametrize("bytes_per_set", [1, 3 * MIB, 126 * MIB - 1, 126 * MIB, 2 * 126 * MIB, 5 * 126 * MIB])
def test_sets_together_cover_twice_the_l2(bytes_per_set: int):
    n = num_rotations(bytes_per_set, 126 * MIB)

    assert n * bytes_per_set >= 2 * 126 * MIB
    assert n == 1 or (n - 1) * bytes_per_set < 2 * 126 * MIB


@pytest.mark.parametrize("l2_bytes", [0, -1, None])
def test_unknown_l2_is_an_error_and_not_a_warm_cache(l2_bytes: int):
    with pytest.raises(ValueError, match="l2_bytes"):
        num_rotations(MIB, l2_bytes)


def test_set_without_bytes_is_refused():
    with pytest.raises(ValueError, match="bytes_per_set"):
        num_rotations(0, MIB)
