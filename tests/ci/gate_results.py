"""Made-up results of a gate."""

import msgspec

from ci.gate.result import Finding, GateResult, GateVerdict, SideOf
from tests.ci.nights import CASE

AGAIN = f"python -m ci gate --base 1111111111 --head 2222222222 --case '{CASE}'"


def verdict(name="unchanged", change_pct=0.1, **changes):
    """One verify time on both sides; an alarm says how to measure it again."""
    facts = {
        "metric": "device_us",
        "op": "verify",
        "provider": "recoverssm",
        "case": CASE,
        "contract": "graph-cold",
        "gpu_model": "nvidia-h200",
        "unit": "us",
        "verdict": name,
        "reason": f"{change_pct:+.2f} % of the base's time, limit 1.5 %",
        "stage": "confirm" if name in ("regressed", "improved") else "screen",
        "gated": True,
        "base_value": 10.0,
        "head_value": 10.0 * (1 + change_pct / 100),
        "change_pct": change_pct,
        "low_pct": change_pct - 0.4,
        "high_pct": change_pct + 0.4,
        "limit_pct": 1.5,
        "detectable_pct": 1.1,
        "p": 0.0001 if name in ("regressed", "improved") else 0.5,
        "n_blocks": 12,
        "reproduce": AGAIN if name in ("regressed", "missing", "invalid") else "",
    }
    return GateVerdict(**{**facts, **changes})


def vanished(**changes):
    """A case that the base has and the head has not."""
    nothing = dict.fromkeys(("head_value", "low_pct", "high_pct", "p"))
    return msgspec.structs.replace(
        verdict("missing", reason="the head lacks this case"), change_pct=None, **nothing, **changes
    )


def result(verdicts=(), findings=(), exit_code=0, **changes):
    """A gate of two commits on one H200."""
    facts = {
        "base": SideOf(commit="1" * 40, source_hash="a" * 64, subject="commit: fold records forward"),
        "head": SideOf(commit="2" * 40, source_hash="b" * 64, subject="verify: wider tiles"),
        "distance": 3,
        "base_found": "merge base",
        "harness": "base",
        "case_set": "pr",
        "cases": [CASE],
        "gpu_model": "nvidia-h200",
        "environment": "driver 580.159, torch 2.11, Triton 3.6",
        "seed": 7,
        "n_blocks": {"screen": 6, "confirm": 12},
        "verdicts": list(verdicts),
        "findings": list(findings),
        "exit_code": exit_code,
        "reproduce": "python -m ci gate --base 1111111111 --head 2222222222 --set pr --seed 7",
    }
    return GateResult(**{**facts, **changes})


def finding(kind="policy-changed", message="the head changes ci/thresholds.toml", exit_code=1, **changes):
    return Finding(kind=kind, message=message, exit_code=exit_code, **changes)
