"""Pages of tables and figures: columns, Markdown, and what hostile texts do there."""

from reports.document import Cell, Document, Fold, Head, Section, Table, cells, heads, markdown


def test_columns_are_written_as_label_unit_and_kind():
    assert heads("case", "#time, µs", "~why") == (
        Head("case"),
        Head("time", "µs", number=True),
        Head("why", wide=True),
    )


def test_markdown_holds_every_table_and_says_what_is_missing():
    full = Table("Times", heads("case", "#time, µs"), (cells("b1", Cell("4.2")),), note="One process.")
    empty = Table("Changes", heads("what"), (), empty="Nothing changed.")
    document = Document(
        ("A lead.",),
        (
            Section("one", "One", tables=(full, empty), folds=(Fold("Night", (full,)),)),
            Section("two", "Two", missing="No night is recorded."),
        ),
    )

    written = markdown("Page", document)

    assert written.startswith("# Page\n\nA lead.\n\n## One\n")
    assert "| case | time, µs |\n| --- | ---: |\n| b1 | 4.2 |\n\nOne process." in written
    assert "### Changes\n\nNothing changed." in written
    assert "<details><summary>Night</summary>\n\n**Times**\n\n| case" in written
    assert written.endswith("## Two\n\nNo night is recorded.\n")


def test_markdown_takes_no_marks_tags_lines_or_mentions_from_a_text():
    hostile = "a|b\n<img src=x> [x](http://y) @team `c` **d** ~e~"
    table = Table(hostile, heads("case"), (cells(hostile),))

    written = markdown("Page", Document((), (Section("one", "One", tables=(table,)),)))

    line = next(line for line in written.splitlines() if line.startswith("| a"))
    assert line == (r"| a\|b \<img src=x\> \[x\](http://y) &#64;team \`c\` \*\*d\*\* \~e\~ |")
