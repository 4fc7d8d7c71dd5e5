"""Stands in for ``benchmarks.static.run``: a report of one op per case, with what the library says of itself."""

import json
import sys
from pathlib import Path

import recoverssm


def main(arguments: list[str]) -> int:
    named = dict(zip(arguments[::2], arguments[1::2], strict=True))
    cases, arch = named["--case"].split(","), "sm_90"
    unknown = [f"{name}: no limits" for name in named["--arch"].split(",") if name == "sm_1"]
    op = {"read_bytes": recoverssm.READ_BYTES, "write_bytes": 1, "fingerprint": recoverssm.FINGERPRINT}
    report = {
        "schema_version": 2,
        "kernels": [],
        "problems": unknown,
        "compiler": {"triton": "3.6", "ptxas": {arch: "13"}},
        "num_launches": {arch: {"recoverssm/verify": dict.fromkeys(cases, recoverssm.LAUNCHES)}},
        "ops": {arch: {"recoverssm/verify": dict.fromkeys(cases, op)}},
    }
    Path(named["--out"]).write_text(json.dumps(report))
    return 2 if unknown else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
