"""Cells of the table of cases."""

import msgspec

from benchmarks.harness.records import Night
from reports.cases import CPU_COLUMNS, GPU_COLUMNS, rows_of
from tests.reports.golden import HEADLINE, NightPlan, golden_cases, golden_record, processes_of


def row_of(record, columns):
    night = Night(
        id="n", created_utc=record.created_utc, case_set="smoke", gpu_model="cpu", records=[record.id], verdicts=[],
        accepted=False, exit_code=0,
    )  # fmt: skip
    return next(row for row in rows_of(night, processes_of([record]), columns) if row.name == HEADLINE)


def test_a_check_of_a_shrunken_twin_does_not_pass_for_one_of_the_case():
    record = golden_record(NightPlan(1), 0, golden_cases())
    detail = "Triton's interpreter on a shrunken twin: 2 requests, 2 heads"
    twins = [msgspec.structs.replace(check, detail=detail) for check in record.checks]

    itself = row_of(record, CPU_COLUMNS)
    twin = row_of(msgspec.structs.replace(record, checks=twins), CPU_COLUMNS)

    assert "twin" not in itself.checks.text + itself.checks.hint
    assert twin.checks.text == f"shrunken twin, {itself.checks.text}"
    assert twin.checks.hint.startswith("not this case: a shrunken twin of it\n")
    assert twin.checks_passed


def test_full_state_has_its_own_roofline_and_control_beside_ours():
    record = golden_record(NightPlan(1), 0, golden_cases())
    shares = {"recoverssm": (40.0, 50.0), "full_state": (70.0, 80.0)}
    measurements = [
        msgspec.structs.replace(item, roofline_pct=shares[item.provider][0], control_pct=shares[item.provider][1])
        if (item.metric, item.op) == ("device_us", "verify")
        else item
        for item in record.measurements
    ]

    row = row_of(msgspec.structs.replace(record, measurements=measurements), GPU_COLUMNS)

    shown = {
        (column.label, column.unit): cell.sort
        for column, cell in zip(GPU_COLUMNS, row.cells, strict=True)
        if column.group == "verify, one layer"
    }
    assert [shown["roofline", "ours, %"], shown["control", "ours, %"]] == [40.0, 50.0]
    assert [shown["roofline", "full, %"], shown["control", "full, %"]] == [70.0, 80.0]
