"""Folders and archives that a stranger may have made: names, links, sizes that are not what they say."""

import gzip
import io
import os
import struct
import tarfile
import zipfile

import pytest

from ci.exits import MissingDataError
from ci.history.archives import MIB, Limits, UntrustedSourceError
from ci.history.importing import import_from
from tests.ci.history_import.packing import as_tar, as_tar_gz, as_zip
from tests.ci.stores import contents

SMALL = Limits(num_members=20, file_bytes=MIB, total_bytes=2 * MIB, packed_bytes=4 * MIB)


@pytest.mark.parametrize(
    "name", ["../x.json", "a/../../x.json", "/etc/x.json", "a\\..\\x.json", "C:/x.json", "a\n.json"]
)
@pytest.mark.parametrize("pack", ["tar", "zip"])
def test_names_that_lead_out_are_refused(tmp_path, refuse, name, pack):
    path = tmp_path / "packed"
    if pack == "tar":
        with tarfile.open(path, "w") as archive:
            archive.addfile(tarfile.TarInfo(name))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(zipfile.ZipInfo(name), b"")

    refuse(path, "leads out of the archive")
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path, refuse, kind):
    info = tarfile.TarInfo("records/nvidia-h200/a.json")
    info.type, info.linkname = kind, "/etc/passwd"
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.addfile(info)

    refuse(tmp_path / "a.tar", "link or special file")


def test_links_in_a_zip_are_refused(tmp_path, refuse):
    info = zipfile.ZipInfo("records/nvidia-h200/a.json")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")

    refuse(tmp_path / "a.zip", "link or special file")


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/etc"), os.mkfifo], ids=["link", "pipe"])
def test_links_and_pipes_in_a_folder_are_refused(source, refuse, make):
    make(source / "records" / "other")

    refuse(source, "link or special file")


def test_an_encrypted_zip_is_refused(tmp_path, refuse):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("records/nvidia-h200/a.json", "{}")
    data = bytearray((tmp_path / "a.zip").read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "a.zip").write_bytes(data)

    refuse(tmp_path / "a.zip", "encrypted")


def test_a_name_that_is_there_twice_with_other_content_is_refused(tmp_path, refuse):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for content in (b"{}", b"[]"):
            info = tarfile.TarInfo("records/nvidia-h200/a.json")
            info.size = 2
            archive.addfile(info, io.BytesIO(content))

    refuse(tmp_path / "a.tar", "there twice")


def bomb_zip(path, size, name="records/nvidia-h200/a.json"):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, b"\0" * size)
    return path


def bomb_tar_gz(path, size, name="records/nvidia-h200/a.json"):
    info = tarfile.TarInfo(name)
    info.size = size
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(info, io.BytesIO(b"\0" * size))
    return path


@pytest.mark.parametrize("bomb", [bomb_zip, bomb_tar_gz], ids=["zip", "tar.gz"])
def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path, refuse, bomb):
    path = bomb(tmp_path / "bomb", 64 * MIB)
    assert path.stat().st_size < MIB

    refuse(path, "larger than 1048576 bytes", limits=SMALL)


def test_a_tar_gz_whose_other_members_unpack_to_much_is_refused(tmp_path, refuse):
    refuse(bomb_tar_gz(tmp_path / "bomb", 64 * MIB, "site/page.html"), "2097152 bytes unpacked", limits=SMALL)


def test_a_zip_whose_header_lies_about_a_size_is_refused(tmp_path, refuse):
    path = bomb_zip(tmp_path / "bomb", 8 * MIB)
    data = path.read_bytes()
    path.write_bytes(data.replace(struct.pack("<I", 8 * MIB), struct.pack("<I", 10)))

    refuse(path, "damaged|larger than", limits=SMALL)


def test_many_small_files_that_together_are_much_are_refused(tmp_path, refuse):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for index in range(4):
            archive.writestr(f"records/nvidia-h200/{index}.json", b"\0" * (MIB - 1))

    refuse(tmp_path / "a.zip", "more than 2097152 bytes", limits=SMALL)


@pytest.mark.parametrize("pack", ["tar", "zip"])
def test_too_many_members_are_refused(tmp_path, refuse, pack):
    path = tmp_path / "packed"
    if pack == "tar":
        with tarfile.open(path, "w") as archive:
            for index in range(21):
                archive.addfile(tarfile.TarInfo(f"{index}.txt"))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            for index in range(21):
                archive.writestr(f"{index}.txt", b"")

    refuse(path, "more than 20 members", limits=SMALL)


def test_a_long_list_of_members_is_refused_before_it_is_read(tmp_path, refuse, monkeypatch):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for index in range(21):
            archive.writestr(f"{index}.txt", b"")
    monkeypatch.setattr(zipfile, "ZipFile", lambda file: pytest.fail("read"))

    refuse(tmp_path / "a.zip", "more than 20 members", limits=SMALL)


def test_an_extended_header_that_claims_much_is_refused_before_it_is_read(tmp_path, refuse):
    info = tarfile.TarInfo("PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, 1 << 40
    with gzip.open(tmp_path / "a.tar.gz", "wb") as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        file.write(b"\0" * 4096)

    refuse(tmp_path / "a.tar.gz", "a part of the archive claims")


def test_an_archive_too_large_as_a_file_is_refused(tmp_path, refuse):
    path = tmp_path / "a.zip"
    with path.open("wb") as file:
        file.truncate(5 * MIB)

    refuse(path, "larger than 4194304 bytes", limits=SMALL)


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", b"PK", b"PK\x05\x06" + b"\0" * 5, gzip.compress(b"hello"), gzip.compress(b"\1" * 2000)[:-9]],
    ids=["empty", "text", "PK", "cut zip", "gzip of text", "cut gzip"],
)
def test_what_is_no_archive_is_refused(tmp_path, store, content):
    path = tmp_path / "a"
    path.write_bytes(content)

    with pytest.raises((UntrustedSourceError, MissingDataError)):
        import_from(path, store)
    assert contents(store.folder) == {}


@pytest.mark.parametrize("pack", [as_tar_gz, as_zip, as_tar], ids=lambda pack: pack.__name__)
def test_a_truncated_archive_is_refused(tmp_path, source, refuse, pack):
    path = pack(source, tmp_path / "packed")
    data = path.read_bytes()
    for share in (0.2, 0.5, 0.8):
        path.write_bytes(data[: int(len(data) * share)])
        refuse(path, "packed")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-1],
        lambda data: data[:-8],
        lambda data: data[:-6] + bytes([data[-6] ^ 1]) + data[-5:],
        lambda d: d + b"x",
    ],
)
def test_archive_is_read_to_the_checksum_at_its_end(source, store, tmp_path, spoil):
    packed = tmp_path / "night.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(source, ".")
    packed.write_bytes(spoil(packed.read_bytes()))

    with pytest.raises(UntrustedSourceError, match="damaged"):
        import_from(packed, store)
