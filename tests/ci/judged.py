"""Made-up nights, judged under the shipped policy."""

from benchmarks.harness import records
from benchmarks.harness.ids import new_id
from ci.judging import judge
from ci.night import Base, Tonight
from ci.policy import load_policy
from tests.ci.nights import CASE

POLICY = load_policy()


def tonight(found, **changes):
    return Tonight(**{"case_set": "smoke", "pattern": "*", "selected": [CASE], "records": found, **changes})


def make_night(found, **changes):
    verdicts = [
        records.Verdict(
            metric=m.metric,
            op=m.op,
            provider=m.provider,
            case=m.case,
            contract=m.contract,
            unit=m.unit,
            verdict="new",
            reason="",
            gated=True,
        )
        for m in found[0].measurements
    ]
    facts = {
        "id": new_id(None),
        "created_utc": "2026-11-29T00:00:00Z",
        "case_set": "smoke",
        "gpu_model": "nvidia-h200",
        "records": [r.id for r in found],
        "verdicts": verdicts,
        "accepted": True,
        "exit_code": 0,
    }
    return records.Night(**{**facts, **changes})


def base_of(found, **changes):
    return Base(make_night(found, **changes), found)


def judged(found, base=None, **changes):
    return judge(tonight(found, **changes), base, POLICY)


def named(findings, metric="device_us"):
    (verdict,) = [v for v in findings.verdicts if v.metric == metric]
    return verdict
