"""From a binary to figures: instruction classes on recorded lines, sections and hash, occupancy with known answers."""

import csv
import struct
from pathlib import Path

import pytest

from benchmarks.static.cubin import Tools, UnreadableError, binary_hash, examine, sections
from benchmarks.static.lines import Lines
from benchmarks.static.occupancy import load_limits, occupancy
from benchmarks.static.sass import CLASSES, class_of, count_instructions

HERE = Path(__file__).parent


def test_recorded_lines_of_sm_90_are_told_apart():
    """One line of each opcode in our kernels but integer arithmetic and moves, as nvdisasm 12.8 prints it."""
    counts = count_instructions((HERE / "sm_90-opcodes.sass").read_text())
    found = {name: number for name, number in counts["by_class"].items() if number}
    assert found == {
        "tensor_core": 2,
        "fma": 1,  # the HFMA2 only loads a constant
        "other_float": 5,
        "mufu": 3,
        "conversion": 1,
        "barrier": 1,
        "global_load": 6,
        "global_store": 5,
        "shared_memory": 12,
        "branch": 5,
    }
    assert counts["total"] == 51  # all but the NOP
    assert counts["by_width"]["global_load"] == {"16": 3, "8": 1, "4": 1, "2": 1}
    assert counts["by_width"]["global_store"] == {"16": 2, "4": 2, "2": 1}
    assert counts["barrier_ids"] == 1


def test_recorded_lines_of_sm_103_are_told_apart():
    counts = count_instructions((HERE / "sm_103-opcodes.sass").read_text())
    assert counts["by_class"]["tensor_core"] == 1
    assert counts["by_class"]["fma"] == 2  # FFMA and the packed FFMA2
    assert counts["by_class"]["other_float"] == 7
    assert counts["by_width"]["global_load"] == {"16": 2, "8": 2, "4": 2, "2": 1}
    assert counts["by_width"]["global_store"] == {"16": 1, "8": 1, "4": 1, "2": 1}


@pytest.mark.parametrize(
    ("opcode", "expected"),
    [
        ("HGMMA", "tensor_core"),
        ("QGMMA", "tensor_core"),
        ("UTCHMMA", "tensor_core"),
        ("IMMA", "tensor_core"),
        ("SHFL", "shuffle"),
        ("LDL", "local_load"),
        ("STL", "local_store"),
        ("ACQBULK", "pdl"),
        ("PREEXIT", "pdl"),
        ("UTMALDG", "bulk_copy"),
        ("REDG", "global_atomic"),
        ("IMAD", None),
        ("LDC", None),
    ],
)
def test_classes_of_opcodes(opcode, expected):
    assert class_of(opcode) == expected


def test_spills_are_counted_by_width():
    counts = count_instructions(
        "/*0010*/ STL.64 [R1], R2 ;\n/*0020*/ @P0 LDL R2, [R1+0x4] ;\n/*0030*/ LDL.128 R4, [R1] ;"
    )
    assert counts["by_width"]["local_store"] == {"8": 1}
    assert counts["by_width"]["local_load"] == {"16": 1, "4": 1}


def test_every_class_is_reported_where_there_is_nothing():
    assert set(count_instructions("")["by_class"]) == set(CLASSES)


@pytest.mark.parametrize(
    ("num_warps", "registers", "shared_bytes", "ctas", "pct", "limited_by"),
    [
        (4, 255, 0, 2, 12.5, ("registers",)),
        (4, 128, 0, 4, 25.0, ("registers",)),
        (4, 168, 0, 3, 18.75, ("registers",)),  # 5376 of 16384 registers a scheduler
        (1, 255, 0, 8, 12.5, ("registers",)),
        (1, 32, 0, 32, 50.0, ("ctas",)),
        (8, 32, 0, 8, 100.0, ("registers", "warps")),
        (2, 40, 0, 24, 75.0, ("registers",)),
        (4, 32, 60_000, 3, 18.75, ("shared",)),
        (4, 32, 232_448, 1, 6.25, ("shared",)),  # all that one CTA may have
        (2, 32, 0, 32, 100.0, ("registers", "warps", "ctas")),
    ],
)
def test_occupancy_of_sm_90(num_warps, registers, shared_bytes, ctas, pct, limited_by):
    found = occupancy(load_limits()["sm_90"], num_warps=num_warps, registers=registers, shared_bytes=shared_bytes)
    assert (found.ctas_per_sm, found.occupancy_pct, found.limited_by) == (ctas, pct, limited_by)


def elf(**contents):
    """A file of these sections, as little of ELF as is read."""
    names, body, headers = b"\0", b"", [(0, 0, 0, 0, 0, 0)]
    for name, content in (*contents.items(), (".shstrtab", None)):
        name_at, names = len(names), names + name.encode() + b"\0"
        content = names if content is None else content
        headers.append((name_at, 1, 0, 0, 64 + len(body), len(content)))
        body += content
    head = bytearray(64)
    struct.pack_into("<Q", head, 40, 64 + len(body))
    struct.pack_into("<HH", head, 60, len(headers), len(headers) - 1)
    return bytes(head) + body + b"".join(struct.pack("<IIQQQQ", *header) + bytes(24) for header in headers)


BINARY = {".text.k": b"code", ".nv.constant0.k": b"constants", ".debug_line": b"/home/a/verify.py:12"}


def test_the_hash_knows_code_and_constants_and_no_debug_information():
    assert dict(sections(elf(**BINARY)))[".debug_line"] == b"/home/a/verify.py:12"
    expected = binary_hash(elf(**BINARY))
    assert binary_hash(elf(**BINARY | {".debug_line": b"/srv/b/verify.py:13"})) == expected
    for name in (".text.k", ".nv.constant0.k"):
        assert binary_hash(elf(**BINARY | {name: b"others"})) != expected
    assert binary_hash(elf(**{".text.k": b"codeconstants"})) != expected


def test_without_tools_size_and_hash_remain():
    figures = examine(
        elf(**BINARY),
        num_warps=4,
        dynamic_shared_bytes=8,
        limits=load_limits()["sm_90"],
        tools=Tools(None, None),
    ).figures
    assert figures["code_bytes"] == 4
    assert figures["binary_hash"] == binary_hash(elf(**BINARY))
    assert figures["registers"] is figures["instructions"] is figures["occupancy_pct"] is None
    assert Tools(None, Path("nvdisasm")).missing == ("cuobjdump",)


@pytest.mark.parametrize("tool", ["cuobjdump", "nvdisasm"])
def test_a_tool_that_does_not_understand_a_binary_is_quoted(tool, tmp_path):
    program = tmp_path / tool
    program.write_text("#!/bin/sh\necho 'fatal: Cannot decode' >&2\nexit 255\n")
    program.chmod(0o755)
    tools = Tools(**{"cuobjdump": None, "nvdisasm": None} | {tool: program})
    with pytest.raises(UnreadableError, match=f"{tool}: fatal: Cannot decode"):
        examine(elf(**BINARY), num_warps=4, dynamic_shared_bytes=0, limits=load_limits()["sm_90"], tools=tools)


def test_occupancy_is_what_nsight_compute_found_on_an_h200():
    """A table that it wrote: our kernels of that day, their registers, and how many CTAs and warps these allow."""
    table = (HERE.parent / "harness" / "ncu-raw.csv").read_text().splitlines()
    rows = list(csv.DictReader(table))[1:]  # units stand first
    assert len(rows) == 5
    for row in rows:
        number = {name: float(value.replace(",", "")) for name, value in row.items() if name.startswith("launch__occ")}
        found = occupancy(
            load_limits()["sm_90"],
            num_warps=int(row["Block Size"].strip("(").split(",")[0]) // 32,
            registers=int(row["launch__registers_per_thread"]),
            shared_bytes=int(row["launch__shared_mem_per_block_dynamic"].replace(",", "")),
        )
        limits = [number[f"launch__occupancy_limit_{name}"] for name in ("registers", "warps", "blocks")]
        assert found.ctas_per_sm == min(limits)
        assert found.warps_per_sm == int(row["sm__maximum_warps_avg_per_active_cycle"])


def line_table(folder, *program):
    """A table as ptxas writes it for a kernel: DWARF 2, opcodes from 10 on, line steps of -5 to 8, two files."""
    opcodes = bytes([1, 1, 0xFB, 14, 10, 0, 1, 1, 1, 1, 0, 0, 0, 1])
    files = f"{folder}/recoverssm/kernels\0/triton\0\0".encode() + b"own.py\0\1\0\0standard.py\0\2\0\0\0"
    set_address = bytes([0, 9, 2, *bytes(8)])
    body = set_address + bytes(program) + bytes([0, 1, 1])
    header = struct.pack("<HI", 2, len(opcodes) + len(files)) + opcodes + files
    return struct.pack("<I", len(header) + len(body)) + header + body


ADVANCE_LINE, SET_FILE, COPY, ADVANCE_PC = 3, 4, 1, 2
TABLE = (
    *(ADVANCE_LINE, 2, COPY),  # 0x00: line 3
    10 + 14 * 0x10 + 5 + 1,  # in one opcode: 0x10 further, one line on
    *(SET_FILE, 2, ADVANCE_PC, 0x90, 0x01, ADVANCE_LINE, 0xE4, 0x00, COPY),  # 0xa0: line 104 of Triton's own
    *(SET_FILE, 1, ADVANCE_PC, 0x10, ADVANCE_LINE, 0x9D, 0x7F, COPY),  # 0xb0: line 5
)


def test_instructions_have_the_source_line_that_the_binary_names(tmp_path):
    source = tmp_path / "recoverssm" / "kernels" / "own.py"
    source.parent.mkdir(parents=True)
    source.write_text("\n\nthree()  # why\n    four()\nfive()\n")
    lines = Lines(line_table(tmp_path, *TABLE))
    assert lines.place(0x00) == ("recoverssm/kernels/own.py:3", "three()")
    assert lines.place(0x10) == ("recoverssm/kernels/own.py:4", "four()")
    assert lines.place(0xF0) == ("recoverssm/kernels/own.py:5", "five()")


def test_what_comes_from_triton_itself_counts_for_the_line_before(tmp_path):
    lines = Lines(line_table(tmp_path, *TABLE))
    assert lines.place(0xA0) == lines.place(0x90)
    assert Lines(b"").place(0) is None
