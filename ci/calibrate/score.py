"""``ci calibrate score``: the trust record, from the A/A set."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.harness.stats.calibration import Floats, Limits
from benchmarks.harness.stats.gate_power import DESIGN, rate_with
from benchmarks.harness.stats.modes import mode_distance_pct
from benchmarks.harness.stats.paired import RATE, PairLimits, detectable_pct
from ci.exits import MissingDataError
from ci.gate.times import limits_of
from ci.policy import load_policy

from . import draws
from .dataset import Dataset, Process, fingerprint, read
from .draws import Found, Kinds
from .identical import identical_pairs
from .targets import BLIND, ENOUGH_GATES, targets
from .trust import Occasion, Power, SeriesTrust, TrustRecord, rounded

FEWEST = 4  # plain processes of an occasion from which gates are drawn


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is drawn: clean gates in all, gates for each delay and occasion, and the seed of all draws."""

    gates: int = ENOUGH_GATES
    trials: int = 200
    seed: int = 1


DEFAULT_SIZES = Sizes()


def score(
    folder: Path, gpu_model: str | None = None, sizes: Sizes = DEFAULT_SIZES, gates: Sequence[Path] = ()
) -> TrustRecord:
    """The trust record of one GPU model of the set, and of the series that real gates found unchanged.

    Raises:
        MissingDataError: no occasion with enough processes, or several models and none named.
    """
    data = of_model(read(folder), gpu_model)
    occasions = usable(data)
    limits, floorless, medians_us = all_limits(data, occasions)
    rng, packed = np.random.default_rng(sizes.seed), Limits.of(limits)
    disjoint = draws.disjoint_gates(occasions, packed, rng)
    resampled = draws.resampled_gates(occasions, packed, sizes.gates, rng)
    found = draws.power_of(occasions, packed, sizes.trials, rng)
    identical = identical_pairs(gates, data.processes[0].gpu_model)
    series = _series(data, occasions, limits, floorless, medians_us, found)
    power = [_power(one, occasions) for one in found]
    blind = {pct: _blind_pct(series, pct) for pct in BLIND}
    return TrustRecord(
        gpu_model=data.processes[0].gpu_model,
        data_sha256=fingerprint(folder),
        policy_sha256=policy_sha256(data),
        newest_utc=max(one.began_utc for one in data.processes),
        seed=sizes.seed,
        num_screen_blocks=DESIGN.n_screen,
        num_confirm_blocks=DESIGN.n_confirm,
        rate=RATE,
        occasions=[_occasion(data, name) for name in data.occasions],
        disjoint=disjoint,
        resampled=resampled,
        identical=identical,
        power=power,
        blind_pct={f"{pct:g}": share for pct, share in blind.items()},
        series=series,
        targets=targets(disjoint, identical, resampled, power, blind),
    )


def of_model(data: Dataset, gpu_model: str | None) -> Dataset:
    """The part of the set that is of one GPU model; of its only one where none is named."""
    models = sorted({one.gpu_model for one in data.processes})
    if gpu_model is None and len(models) == 1:
        gpu_model = models[0]
    if gpu_model not in models:
        raise MissingDataError(f"--gpu-model: expected one of {', '.join(models)}, got {gpu_model}")
    return replace(data, processes=tuple(one for one in data.processes if one.gpu_model == gpu_model))


def usable(data: Dataset) -> list[Kinds]:
    """The occasions from which gates can be drawn. Raises MissingDataError without one."""
    found = [one for name in data.occasions if len((one := Kinds.of(data, name)).plain) >= FEWEST]
    if not found:
        raise MissingDataError(f"no occasion with {FEWEST} processes as they are", "python -m ci calibrate collect")
    return found


def all_limits(data: Dataset, occasions: Sequence[Kinds]) -> tuple[list[PairLimits], list[PairLimits], Floats]:
    """The gate's limits of each series, with and without their absolute floor, and its time in us."""
    logs = np.concatenate([one.plain for one in occasions])
    medians_us = np.array(
        [math.exp(np.median(column[known])) if (known := ~np.isnan(column)).any() else math.nan for column in logs.T]
    )
    each = series_limits(data)
    with_floor = [one.at(float(median_us)) for one, median_us in zip(each, medians_us, strict=True)]
    return with_floor, [replace(one, floor_us=0.0) for one in each], medians_us


def series_limits(data: Dataset) -> list[PairLimits]:
    """The gate's limits of each series of the set, floors as in ci/thresholds.toml."""
    model, policy = data.processes[0].gpu_model, load_policy()
    return [limits_of(policy, one.key, one.num_requests, model) for one in data.series]


def policy_sha256(data: Dataset) -> str:
    """Of these limits: the policy's words, and its limits of other series, leave it alone."""
    return hashlib.sha256(msgspec.json.encode(series_limits(data))).hexdigest()


def _series(
    data: Dataset,
    occasions: Sequence[Kinds],
    limits: Sequence[PairLimits],
    floorless: Sequence[PairLimits],
    medians_us: Floats,
    found: Sequence[Found],
) -> list[SeriesTrust]:
    rows = []
    for index, one in enumerate(data.series):
        columns = [kinds.plain[:, index] for kinds in occasions]
        sd_pct, modes_pct = _pooled_sd_pct(columns), _modes_pct(columns)
        rows.append(
            SeriesTrust(
                metric=one.metric,
                op=one.op,
                provider=one.provider,
                case=one.case,
                contract=one.contract,
                gated=limits[index].gated,
                median_us=rounded(float(medians_us[index])),
                process_sd_pct=rounded(sd_pct),
                limit_pct=rounded(limits[index].limit_pct) or 0.0,
                modes_pct=None if modes_pct is None else rounded(modes_pct),
                detectable_pct=_detectable(sd_pct, modes_pct, limits[index]),
                noise_detectable_pct=_detectable(sd_pct, modes_pct, floorless[index]),
                found_pct={f"{f.delay_pct:g}": _found_pct(f, index) for f in found},
            )
        )
    return sorted(rows, key=lambda row: -(math.inf if row.detectable_pct is None else row.detectable_pct))


def _pooled_sd_pct(columns: Sequence[Floats]) -> float:
    # Of logarithms, so that occasions at different levels count alike; block differences have the same spread.
    kept = [values for column in columns if len(values := column[~np.isnan(column)]) > 1]
    freedom = sum(len(values) - 1 for values in kept)
    squares = sum(float(np.sum((values - values.mean()) ** 2)) for values in kept)
    return 100 * math.sqrt(squares / freedom) if freedom else math.nan


def _modes_pct(columns: Sequence[Floats]) -> float | None:
    # Of one occasion: two levels of two occasions are no modes.
    found = [mode_distance_pct([*np.exp(column)]) for column in columns]
    return max((pct for pct in found if pct is not None), default=None)


def _detectable(sd_pct: float, modes_pct: float | None, limits: PairLimits) -> float | None:
    design = replace(DESIGN, rate=rate_with(modes_pct))
    return rounded(detectable_pct(sd_pct, limits, design)) if math.isfinite(sd_pct) else None


def _power(found: Found, occasions: Sequence[Kinds]) -> Power:
    pct = found.delay_pct
    having = [one for one in occasions if pct in one.delayed]
    realised = [one.realised[pct] for one in having]
    apart = [np.mean(one.delayed[pct], axis=0) - np.mean(one.plain, axis=0) for one in having]
    cells = float(found.num_gates.sum())
    return Power(
        delay_pct=pct,
        realised_pct=rounded(100 * math.expm1(float(np.nanmean(realised)))) or 0.0,
        apart_pct=rounded(100 * math.expm1(float(np.nanmean(apart)))) or 0.0,
        real_pct=rounded(100 * float(found.real.sum()) / cells) or 0.0,
        synthetic_pct=rounded(100 * float(found.synthetic.sum()) / cells) or 0.0,
        num_series=len(found.real),
        num_gates=int(found.num_gates.max()),
    )


def _found_pct(found: Found, index: int) -> float:
    return rounded(100 * float(found.real[index]) / max(1.0, float(found.num_gates[index]))) or 0.0


def _blind_pct(series: Sequence[SeriesTrust], effect_pct: float) -> float:
    blind = sum(one.detectable_pct is None or one.detectable_pct > effect_pct for one in series)
    return rounded(100 * blind / len(series)) or 0.0


def _occasion(data: Dataset, name: str) -> Occasion:
    own: list[Process] = [one for one in data.processes if one.occasion == name]
    return Occasion(
        id=name,
        card=own[0].card,
        commit=own[0].commit,
        source_hash=own[0].source_hash,
        began_utc=min(one.began_utc for one in own),
        num_plain=len(data.chosen(occasion=name, delay_pct=None)),
        num_delayed={f"{pct:g}": len(data.chosen(occasion=name, delay_pct=pct)) for pct in data.delays},
        num_unsound=sum(bool(one.unsound) for one in own),
    )
