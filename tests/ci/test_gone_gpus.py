"""A host that loses a GPU between nights says so until it is back, or until an owner lets it go."""

import platform

import pytest
from msgspec.structs import replace

from benchmarks.harness.records import Acceptance, Environment, Shard, Silicon
from benchmarks.harness.store import open_store
from ci import gone_gpus as module
from ci.accept.night import accept_night
from ci.exits import Exit
from ci.gone_gpus import gone_gpus
from ci.gpus import Gpu
from ci.show import next_step
from tests.ci.nights import make_records
from tests.ci.stores import MadeNight, make_night, put_at_url, store_nights

H200, OTHER_H200 = Gpu("GPU-1", "NVIDIA H200"), Gpu("GPU-2", "NVIDIA H200")
H100 = Gpu("GPU-3", "NVIDIA H100")
HASH_OF_OTHER = "#a6706f51"


@pytest.fixture(autouse=True)
def _unchosen(monkeypatch):
    """Nobody but the command line says which GPUs are measured."""
    for name in module.NARROWING:
        monkeypatch.delenv(name, raising=False)


def night_of(day, *gpus, host=None, **changes):
    """An accepted night with a process on each of these."""
    made = make_night(day, levels=(100.0,) * len(gpus), **changes)
    host = platform.node() if host is None else host
    records = [
        replace(record, silicon=Silicon(gpu_uuid=gpu.uuid, host=host))
        for record, gpu in zip(made.records, gpus, strict=True)
    ]
    return MadeNight(made.night, records)


def said(tmp_path, *nights, present=(H200,)):
    return [(gone.gpu_model, gone.said) for gone in gone_gpus(store_nights(tmp_path / "store", *nights), present)]


def test_gpu_of_the_last_night_is_missed_by_its_hash(tmp_path):
    ((model, text),) = said(tmp_path, night_of(1, H200, OTHER_H200))

    assert model == "nvidia-h200"
    assert text.startswith("this host has 1 nvidia-h200, and had 2 in night 20261101T090000Z")
    assert f": {HASH_OF_OTHER} not here" in text
    assert OTHER_H200.uuid not in text
    assert platform.node() not in text


def test_host_with_as_many_gpus_as_before_is_well_also_with_another_card(tmp_path):
    assert said(tmp_path, night_of(1, H200, OTHER_H200), present=(H200, Gpu("GPU-9", "NVIDIA H200"))) == []


def test_last_gpu_of_a_model_is_missed_among_others(tmp_path):
    h100 = Environment(gpu_model="nvidia-h100", python="3.12.1", torch="2.11.0", harness="1", driver="580.1")

    ((model, _),) = said(tmp_path, night_of(1, H200), night_of(2, H100, environment=h100))

    assert model == "nvidia-h100"


def test_gpus_of_other_hosts_and_of_nights_that_were_not_accepted_are_not_missed(tmp_path):
    other = night_of(1, H200, OTHER_H200, host="another")
    refused = night_of(2, H200, OTHER_H200, accepted=False, exit_code=4)

    assert said(tmp_path, other, refused, night_of(3, H200)) == []


def test_night_by_hand_on_one_gpu_hides_nothing(tmp_path):
    assert len(said(tmp_path, night_of(1, H200, OTHER_H200), night_of(2, H200))) == 1


def test_night_that_an_owner_accepted_says_how_many_there_are(tmp_path):
    decided = Acceptance(owner="a", reason="the card went to another host", at_utc="2026-11-02T10:00:00Z")

    assert said(tmp_path, night_of(1, H200, OTHER_H200), night_of(2, H200, acceptance=decided)) == []


def test_night_of_several_hosts_tells_of_each(tmp_path):
    made, shard = night_of(1, H200, OTHER_H200, H100), Shard(night="x", index=1, count=2)
    hosts = ("another", platform.node(), platform.node())
    records = [
        replace(record, shard=shard, silicon=replace(record.silicon, host=host))
        for record, host in zip(made.records, hosts, strict=True)
    ]

    assert len(said(tmp_path, MadeNight(made.night, records))) == 1


@pytest.mark.parametrize("name", module.NARROWING)
def test_gpus_that_somebody_else_chose_are_not_counted(tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, "0")

    assert said(tmp_path, night_of(1, H200, OTHER_H200)) == []


def test_gpu_that_does_not_answer_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "silent_gpus", lambda: ["GPU 2 of 2 does not answer: GPU is lost"])

    assert said(tmp_path) == [(None, "GPU 2 of 2 does not answer: GPU is lost: python -m ci doctor")]


def test_few_nights_of_a_store_are_read_and_of_others_hosts_one_record(tmp_path, monkeypatch):
    mine = [night_of(day, H200, OTHER_H200) for day in range(1, 9)]
    others = [night_of(day, H200, OTHER_H200, host="another") for day in range(9, 12)]
    url, asked = put_at_url(store_nights(tmp_path / "store", *mine, *others), tmp_path, monkeypatch)

    assert len(gone_gpus(open_store(url, writable=False), [H200])) == 1
    assert len([name for name in asked if name.startswith("nights/")]) == module.HOST_NIGHTS + 3
    assert len([name for name in asked if name.endswith(".json")]) == module.HOST_NIGHTS * 3 + 3 * 2


@pytest.fixture
def nights(fake_night, monkeypatch):
    """Call it with the GPUs of the host, for a night on all of them."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr("ci.nightly.require_usable", lambda _: None)

    def run(*gpus, **changes):
        monkeypatch.setattr("ci.nightly.find_gpus", lambda: list(gpus))
        found = [
            replace(record, silicon=Silicon(gpu_uuid=gpu.uuid, host=platform.node()))
            for gpu in gpus
            for record in make_records()
        ]
        return fake_night.night(found, **{"gpus": "all", "exclusive": True, **changes})

    run.store = fake_night.open
    run.fake = fake_night
    return run


def test_night_without_a_gpu_is_missing_it_until_it_is_back(nights):
    assert nights(H200, OTHER_H200).code == Exit.PASS

    for _ in range(2):
        result = nights(H200)
        (night,) = result.nights
        assert (result.code, night.exit_code, night.accepted) == (Exit.MISSING, Exit.MISSING, False)
        assert any(f"{HASH_OF_OTHER} not here" in note for note in night.notes)
        assert f"python -m ci accept night {night.id}" in next_step(night, "out/store")

    assert nights(H200, OTHER_H200).code == Exit.PASS


def test_owner_lets_a_gpu_go(nights):
    nights(H200, OTHER_H200)
    accept_night(nights.store(), nights(H200).nights[0].id, "somebody", "the card went to another host")

    assert nights(H200).code == Exit.PASS


def test_night_on_gpus_that_were_named_misses_no_other(nights):
    nights(H200, OTHER_H200)

    assert nights(H200, gpus=H200.uuid).code == Exit.PASS
    assert nights(H200, gpus=None).code == Exit.PASS


def test_resumed_night_misses_it_too(nights):
    nights(H200, OTHER_H200)
    assert nights(H200, do={1: "interrupt"}).code == Exit.INTERRUPTED

    assert nights(H200, gpus=None, resume=True).code == Exit.MISSING


def test_gpu_of_a_model_without_a_night_is_told_beside_the_others(nights):
    h100 = Environment(gpu_model="nvidia-h100", python="3.12.1", torch="2.11.0", harness="1", driver="580.1")
    store_nights(nights.store().folder, night_of(1, H100, environment=h100))

    result = nights(H200)

    assert (result.code, result.nights[0].exit_code) == (Exit.MISSING, Exit.PASS)
    assert any("this host has 0 nvidia-h100" in message for message in result.messages)
