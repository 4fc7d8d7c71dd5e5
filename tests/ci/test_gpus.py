"""Which GPUs a night may use, with made-up NVMLs and torches."""

import pytest

from ci import gpus
from ci.exits import BrokenEnvironmentError, UsageError
from ci.gpus import CPU, Gpu, TorchView, choose_gpus, find_gpus, require_usable, silent_gpus

H200, GB300 = Gpu("GPU-aaaa", "NVIDIA H200"), Gpu("GPU-bbbb", "NVIDIA GB300")


class Nvml:
    """Two GPUs; one call may fail."""

    def __init__(self, failing=None, parts=()):
        self.failing, self.shut_down, self.parts = failing, 0, parts

    def _answer(self, name, value):
        if name == self.failing:
            raise RuntimeError(f"{name}: not supported")
        return value

    def nvmlInit(self):  # noqa: N802, NVML's name
        self._answer("init", None)

    def nvmlShutdown(self):  # noqa: N802
        self.shut_down += 1

    def nvmlDeviceGetCount(self):  # noqa: N802
        return self._answer("count", 2)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return (H200, GB300)[index]

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        return self._answer("uuid", handle.uuid.encode())

    def nvmlDeviceGetName(self, handle):  # noqa: N802
        return handle.name

    def nvmlDeviceGetMigMode(self, handle):  # noqa: N802
        if handle is GB300 or not self.parts:
            raise RuntimeError("not supported")
        return 1, 1

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, place):  # noqa: N802
        if place % 3:
            raise RuntimeError("not found")
        return self.parts[place // 3]


def torch_sees(monkeypatch, *seen, cuda="12.9", error=None):
    asked = []

    def ask(env):
        asked.append(dict(env))
        return TorchView("2.11.0", cuda, seen, error)

    monkeypatch.setattr(gpus, "ask_torch", ask)
    return asked


def test_nvml_names_the_gpus_and_no_gpu_is_touched(monkeypatch):
    asked, nvml = torch_sees(monkeypatch), Nvml()

    assert find_gpus({}, nvml) == [H200, GB300]
    assert asked == []
    assert nvml.shut_down == 1


def test_gpu_that_is_cut_up_is_named_by_its_parts():
    parts = [Gpu(f"MIG-{place}", "NVIDIA H200 MIG 1g.18gb") for place in "abc"]

    found = find_gpus({}, Nvml(parts=parts))

    assert found == [*parts, GB300]
    assert choose_gpus("b,MIG-a", found) == [parts[1], parts[0]]
    assert parts[0].child_env({})["CUDA_VISIBLE_DEVICES"] == "MIG-a"


@pytest.mark.parametrize("failing", ["init", "count", "uuid"])
def test_torch_is_asked_when_nvml_cannot_answer_but_a_driver_is_here(monkeypatch, tmp_path, failing):
    torch_sees(monkeypatch, H200)
    monkeypatch.setattr(gpus, "DRIVER_FILES", (str(tmp_path),))

    assert find_gpus({}, Nvml(failing)) == [H200]


def test_gpu_that_is_lost_is_none_of_those_here_and_is_told():
    nvml = Nvml()
    nvml.nvmlDeviceGetHandleByIndex = lambda index: H200 if index == 0 else nvml._answer(nvml.failing, None)
    nvml.failing = "GPU is lost"

    assert find_gpus({}, nvml) == [H200]
    assert silent_gpus(nvml) == ["GPU 2 of 2 does not answer: GPU is lost: not supported"]
    assert silent_gpus(Nvml()) == silent_gpus(Nvml("init")) == []


def test_without_nvml_and_driver_it_is_the_cpu(monkeypatch):
    monkeypatch.setattr(gpus, "DRIVER_FILES", ())

    assert [gpu.uuid for gpu in find_gpus({}, Nvml("init"))] == [CPU]


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_are_not_looked_for(hidden):
    assert [gpu.uuid for gpu in find_gpus({"CUDA_VISIBLE_DEVICES": hidden}, Nvml())] == [CPU]


def test_narrowed_choice_is_torchs_to_read(monkeypatch):
    torch_sees(monkeypatch, GB300)

    assert find_gpus({"CUDA_VISIBLE_DEVICES": "1"}, Nvml()) == [GB300]


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        (None, [H200]),
        ("all", [H200, GB300]),
        ("GPU-bbbb", [GB300]),
        ("bbbb, GPU-aaaa", [GB300, H200]),
        ("aaaa,aaaa", [H200]),
    ],
)
def test_gpus_are_chosen_by_uuid(wanted, chosen):
    assert choose_gpus(wanted, [H200, GB300]) == chosen


def test_all_of_no_gpus_is_a_broken_environment_and_no_night_of_the_cpu():
    with pytest.raises(BrokenEnvironmentError, match="--gpus all: no GPU that torch can use"):
        choose_gpus("all", [Gpu(CPU, "no GPU that torch can use")])


def test_cpu_can_be_asked_for_where_there_are_gpus():
    (gpu,) = choose_gpus("cpu", [H200])

    assert gpu.child_env({"A": "b", "CUDA_VISIBLE_DEVICES": "0"})["CUDA_VISIBLE_DEVICES"] == ""


def test_absent_gpu_is_refused_with_those_that_are_here():
    with pytest.raises(UsageError, match=r"GPU-aaaa \(NVIDIA H200\), GPU-bbbb .*got 'GPU-cccc'"):
        choose_gpus("GPU-aaaa,GPU-cccc", [H200, GB300])


def test_child_sees_its_gpu_alone():
    assert H200.child_env({"CUDA_VISIBLE_DEVICES": "0,1"})["CUDA_VISIBLE_DEVICES"] == "GPU-aaaa"


def test_gpu_that_torch_does_not_see_is_a_broken_environment(monkeypatch):
    torch_sees(monkeypatch, cuda=None)

    with pytest.raises(BrokenEnvironmentError, match="a CPU build") as caught:
        require_usable(H200)
    assert "--gpus cpu" in caught.value.next_step


def test_gpu_that_torch_cannot_use_is_a_broken_environment(monkeypatch):
    torch_sees(monkeypatch, H200, error="RuntimeError: no kernel image")

    with pytest.raises(BrokenEnvironmentError, match="no kernel image"):
        require_usable(H200)


def test_torch_that_cannot_be_imported_says_why(monkeypatch):
    monkeypatch.setattr(gpus, "_PROBE", "raise ImportError('no torch today')")

    with pytest.raises(BrokenEnvironmentError, match="no torch today"):
        gpus.ask_torch({})
