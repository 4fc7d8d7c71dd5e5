"""What each figure, word and mark of the pages means, and where the raw data is."""

from reports.cases import VERDICT_MARKS
from reports.document import Document, Section, Table, cells, heads
from reports.pages.documents import document_content
from reports.pages.page import Content, Page, Site

FIGURES = (
    (
        "verify overhead",
        "% of full state",
        "lower",
        "verify over full-state verify, less 1, inside each process; below 0: ours is faster",
    ),
    (
        "commit latency",
        "µs a step",
        "lower",
        "device time of building the accepted state of every layer: plan, state, conv windows",
    ),
    ("commit, host", "µs a step", "lower", "time of the host to launch the same commit"),
    (
        "step overhead",
        "% of full state",
        "lower",
        "all layers' verifies and the commit in one graph, over all layers' full-state verifies, less 1",
    ),
    (
        "memory saved",
        "bytes; % of full state",
        "higher",
        "cache bytes of full state less ours; computed from shapes and held against the allocator",
    ),
    (
        "capacity gain",
        "% more tokens",
        "higher",
        "tokens of full-length requests that one budget holds, against full state",
    ),
    (
        "roofline",
        "%",
        "higher",
        "time that compulsory bytes need at the best stream of the process, over its own; above 102 it is invalid",
    ),
    (
        "control",
        "%",
        "higher",
        "the same against a stream of the same bytes, reads to writes, and grid; above 100 is possible",
    ),
    (
        "out_error, u_error, state_error",
        "relative",
        "lower",
        "Frobenius norm of the difference to float64 over that of float64: outputs, corrections, states",
    ),
    ("spread, sd", "%", "lower", "standard deviation of process medians, in percent of their mean"),
    ("detectable", "%", "lower", "smallest change that is found with 80 % power; a series is blind to less"),
)
CONTRACTS = (
    ("graph-cold", "CUDA graph over states and records rotated through at least twice the L2; activations warm"),
    ("graph-warm", "CUDA graph over the same memory again and again"),
    ("nvbench-cold", "NVBench's isolated cold launch"),
    ("host-dispatch", "host time from the call until it returns"),
    ("cpu-reference", "the torch reference on a CPU; says nothing about a GPU"),
    ("exact", "computed, the same in every process to the last digit"),
    ("static", "of the compiled code, without a card"),
)
VERDICTS = {
    "regressed": "worse than the base by more than the limit, and not by chance",
    "invalid": "the measurement cannot be believed; the reason is beside it",
    "missing": "the base has this series and the night does not",
    "inconclusive": "neither a change nor its absence is shown",
    "blind": "its smallest detectable change exceeds its limit: shown, not judged",
    "new": "there is no base to compare with",
    "unchanged": "no change beyond the limit, and one would have been seen",
    "improved": "better than the base by more than the limit, and not by chance",
}


def load(site: Site) -> Content:
    return document_content(PAGE.name, about_document())


PAGE = Page("about", "About", "What does each figure, word and mark mean?", load, ("document.js",), template="document")


def about_document() -> Document:
    lead = (
        "RecoverSSM makes speculative decoding with Kimi Delta Attention cheap in memory and in time: one checkpoint "
        "and small records instead of a state for every token. These pages show what it costs and saves, night by "
        "night, beside the full-state scheme.",
        "The unit of statistics is the process, never the sample: each night runs several fresh processes, a ratio is "
        "taken inside each, and a figure is their median with the smallest and largest beside it. Times are UTC.",
    )
    return Document(
        lead,
        (
            Section(
                "figures",
                "Figures",
                tables=(
                    Table(
                        "What is measured",
                        heads("figure", "unit", "better", "~meaning"),
                        tuple(cells(*row) for row in FIGURES),
                    ),
                ),
            ),
            Section("verdicts", "Verdicts", tables=(_verdicts(),)),
            Section(
                "contracts",
                "Contracts",
                ("How a number was taken. Numbers of two contracts are never one series.",),
                tables=(
                    Table(
                        "How times and figures are taken",
                        heads("contract", "~meaning"),
                        tuple(cells(*row) for row in CONTRACTS),
                    ),
                ),
            ),
            Section("identity", "What surrounds a number", tables=(_surroundings(),)),
        ),
    )


def _verdicts() -> Table:
    rows = [cells(VERDICT_MARKS[name], name, meaning) for name, meaning in VERDICTS.items()]
    return Table("Of a series, against the base night", heads("mark", "verdict", "~meaning"), tuple(rows))


def _surroundings() -> Table:
    rows = (
        ("environment", "GPU model, memory, driver, CUDA, torch, Triton, harness", "a change cuts a series"),
        ("silicon", "which card and host, shown as eight digits of a SHA-256", "a random effect: shown, never cutting"),
        ("subject", "commit, source hash, binaries", "what is tracked"),
        ("series", "metric, op, provider, case, GPU model, contract", "one line of the history"),
        (
            "case",
            "kimi_k3_tp8_b32_t8_a3.84_fp32: model, ranks, requests, tokens a window, accepted tokens, dtype of states",
            "a named workload; _unbounded: with the gate that has no bound",
        ),
    )
    return Table("Words", heads("word", "~what it holds", "role"), tuple(cells(*row) for row in rows))
