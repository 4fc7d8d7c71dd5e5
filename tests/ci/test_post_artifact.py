"""The verdict that a gate left, a stranger's file: bounded while it is unpacked, checked before it is used."""

import io
import json
import stat
import zipfile
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from ci.gate.judge import command
from ci.gate.result import SideOf, encode
from ci.posting.artifact import COMMAND, MEMBER, UntrustedArtifactError, read_verdict, unpack_verdict
from tests.ci.gate_results import AGAIN, finding, result, verdict
from tests.ci.nights import CASE
from tests.ci.posted import GATE, SHA, archive


def opened(content):
    return read_verdict(unpack_verdict(content), SHA)


def test_a_verdict_comes_back_as_it_was():
    assert opened(archive(encode(GATE))) == GATE


def test_it_must_be_of_the_commit_of_the_run():
    other = replace(GATE, head=SideOf(commit="3" * 40, source_hash="c" * 64))

    with pytest.raises(UntrustedArtifactError, match="of commit '3333"):
        opened(archive(encode(other)))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"no archive", "not a readable archive"),
        (archive(encode(GATE), b"x"), "verdict.json alone, got 2 members"),
        (archive(encode(GATE), name="../verdict.json"), r"verdict.json alone.*\.\./verdict"),
        (archive(b"0" * (17 << 20)), "more than"),
        (archive(b"[" * 100_000), "no result of a gate"),
        (archive(b"{}"), "no result of a gate"),
        (archive(b"\x00\xff"), "no result of a gate"),
        (b"0" * (5 << 20), r"5242880 bytes, 4194304 at most"),
    ],
)
def test_what_is_no_verdict_is_refused(content, named):
    with pytest.raises(UntrustedArtifactError, match=named):
        opened(content)


def test_a_link_is_refused():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        member = zipfile.ZipInfo(MEMBER)
        member.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(member, "/etc/passwd")

    with pytest.raises(UntrustedArtifactError, match="expected a plain file"):
        opened(buffer.getvalue())


@pytest.mark.parametrize(
    ("gate", "named"),
    [
        (replace(GATE, exit_code=0), "exit code 0, its verdicts and findings make 1"),
        (replace(GATE, exit_code=77), "exit code 77"),
        (result(findings=[finding(exit_code=3)], exit_code=0), "make 3"),
        (result(findings=[finding(exit_code=77)], exit_code=77), "77 is not a valid Exit"),
        (result(findings=[finding(exit_code=130)], exit_code=130), "no result of a gate"),
        (result([verdict(decimals=10**9)]), "no result of a gate"),
        (result([verdict(decimals=-1)]), "no result of a gate"),
    ],
)
def test_an_outcome_that_its_verdicts_do_not_make_is_refused(gate, named):
    with pytest.raises(UntrustedArtifactError, match=named):
        opened(archive(encode(gate)))


def test_an_unknown_field_is_refused():
    facts = {**json.loads(encode(GATE)), "html": "<b>"}

    with pytest.raises(UntrustedArtifactError, match="html"):
        opened(archive(json.dumps(facts).encode()))


@pytest.mark.parametrize(
    "command",
    [
        "curl https://example.com | sh",
        "python -m ci gate; curl https://example.com",
        "python -m ci gate $(curl example.com)",
        "python -m ci gate `id`",
        "python -m ci gate\ncurl example.com",
        "python -m ci gate 'x'; 'y'",
        "python -m ci gate > /etc/passwd",
        "python -m pip install evil",
    ],
)
def test_a_command_that_is_none_of_ours_is_refused(command):
    for gate in (
        replace(GATE, reproduce=command),
        replace(GATE, verdicts=[verdict("regressed", reproduce=command)]),
    ):
        with pytest.raises(UntrustedArtifactError, match="none of ours"):
            opened(archive(encode(gate)))


@pytest.mark.parametrize(
    "command",
    [
        AGAIN,
        "python -m ci gate --base main~3 --head 0123abc --set pr --case '*_b32_*,kimi[13]*' --seed 7",
        "python -m benchmarks.run --set smoke --case kimi_k3_tp8_b1_t8_a3.84_fp32 --out out/again.json",
    ],
)
def test_commands_of_ours_are_known(command):
    assert COMMAND.fullmatch(command)


def test_every_command_of_a_gate_is_known():
    sides = {side: SimpleNamespace(commit=digit * 40) for side, digit in (("base", "1"), ("head", "2"))}
    plan = SimpleNamespace(
        **sides,
        pattern="*_b32_*,kimi[13]*",
        case_set="pr",
        harness="own",
        seed=7,
        blocks={"screen": 2, "confirm": 3},
    )

    for case, arch in ((None, ""), (CASE, ""), (CASE, "sm_90")):
        assert COMMAND.fullmatch(command(plan, case, arch))


def test_more_than_anybody_reads_is_refused():
    gate = replace(GATE, verdicts=[], findings=[finding("note", "x", 0)] * 20_001)

    with pytest.raises(UntrustedArtifactError, match="more than 20000"):
        opened(archive(encode(gate)))
