"""A host that has fewer GPUs than on its last nights: the others measure well, so nobody would notice."""

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from benchmarks.harness.environment import gpu_slug
from benchmarks.harness.record_files import read_record
from benchmarks.harness.records import Night
from benchmarks.harness.store import Store
from reports.text import short_hash

from .gpus import CPU, Gpu, silent_gpus

HOST_NIGHTS = 5  # of this host and a GPU model that tell how many it has: one by hand may have asked for fewer
LOOKED_AT = 30  # nights of a GPU model, in search of them: in a fleet's store they are of many hosts
NARROWING = ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID")  # somebody else chose the GPUs, and may choose others tonight


@dataclass(frozen=True, slots=True)
class Gone:
    """What to tell of GPUs that are not here. ``gpu_model`` is None where they do not say what they are."""

    gpu_model: str | None
    said: str


def gone_gpus(store: Store, present: Sequence[Gpu], env: Mapping[str, str] | None = None) -> list[Gone]:
    """Of each GPU model those that this host had on its last accepted nights; and those that do not answer.

    A night that an owner accepted says anew how many there are. Cards are told by eight digits of a hash, as on pages.

    Args:
        present: all GPUs of this host.
    """
    if any(name in (os.environ if env is None else env) for name in NARROWING):
        return []
    found = [Gone(None, f"{silent}: python -m ci doctor") for silent in silent_gpus()]
    here = [gpu_slug(gpu.name) for gpu in present]
    for model in store.gpu_models():
        before = max(_of_this_host(store, model), key=lambda seen: len(seen[1]), default=None)
        if before and len(before[1]) > here.count(model):
            night, cards = before
            absent = ", ".join(sorted(short_hash(card) for card in cards - {gpu.uuid for gpu in present}))
            had = f"and had {len(cards)} in night {night.id}: {absent} not here"
            found.append(Gone(model, f"this host has {here.count(model)} {model}, {had}: python -m ci doctor"))
    return found


def _of_this_host(store: Store, model: str) -> Iterator[tuple[Night, set[str]]]:
    """The newest accepted nights that this host had a part in, each with the UUIDs of its cards here."""
    host, left = platform.node(), HOST_NIGHTS
    for night in islice(store.newest_first(model), 0 if model == CPU else LOOKED_AT):
        if night.is_static:
            return
        if night.accepted and (cards := _cards(store, night, host)):
            yield night, cards
            left -= 1
            if night.acceptance or not left:
                return


def _cards(store: Store, night: Night, host: str) -> set[str]:
    first = next(store.read_each(read_record, None, set(night.all_records[:1]), night.gpu_model), None)
    if first is None or (first.shard is None and first.silicon.host != host):
        return set()  # all of a night without shards is of one host
    records = store.read_each(read_record, None, set(night.all_records), night.gpu_model)
    return {record.silicon.gpu_uuid for record in records if record.silicon.host == host and record.silicon.gpu_uuid}
