"""Schema versions: the chain of steps, and what is said when it does not lead here."""

import msgspec
import pytest

from benchmarks.harness.migrations import STEPS, NewerSchemaError, SchemaVersionError, upgrade
from benchmarks.harness.record_files import decode_night, encode, schema_version
from benchmarks.harness.records import SCHEMA_VERSION
from tests.harness.stored import make_night


def add(name):
    return lambda kind, obj: {**obj, name: kind}


def test_steps_are_taken_one_after_the_other():
    found = upgrade("night", {"schema_version": 3, "a": 1}, newest=5, steps={3: add("b"), 4: add("c"), 5: add("d")})

    assert found == {"schema_version": 5, "a": 1, "b": "night", "c": "night"}


def test_the_newest_version_is_left_alone():
    assert upgrade("record", {"schema_version": 5}, newest=5, steps={}) == {"schema_version": 5}


def test_the_object_given_is_not_changed():
    old = {"schema_version": 1}

    upgrade("record", old, newest=2, steps={1: lambda kind, obj: obj | {"a": obj.pop("b", None)}})

    assert old == {"schema_version": 1}


def test_a_newer_version_is_an_error_of_its_own():
    with pytest.raises(NewerSchemaError, match="7, this program reads up to 5"):
        upgrade("record", {"schema_version": 7}, newest=5, steps={})


@pytest.mark.parametrize("version", [None, "1", 1.5, True])
def test_something_else_than_a_number_is_refused(version):
    with pytest.raises(SchemaVersionError, match="whole number"):
        upgrade("record", {"schema_version": version}, newest=5, steps={})


def test_a_missing_step_is_named():
    with pytest.raises(SchemaVersionError, match="4, and no step leads from it to 5"):
        upgrade("record", {"schema_version": 3}, newest=5, steps={3: add("b")})


def test_every_version_since_the_first_has_its_step():
    assert sorted(STEPS) == list(range(1, SCHEMA_VERSION))


def test_json_nested_too_deeply_is_a_decoding_error():
    data = encode(make_night("20261129T150000Z-abc-000002", []))
    deep = data.replace(b'"notes": []', b'"notes": ' + b"[" * 10_000 + b"]" * 10_000)

    with pytest.raises(msgspec.DecodeError):
        decode_night(deep)
    with pytest.raises(msgspec.DecodeError, match="deep"):
        decode_night(b" " + deep)  # whose version has to be looked for
    assert schema_version(data) == SCHEMA_VERSION
