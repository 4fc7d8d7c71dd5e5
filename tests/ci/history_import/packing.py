"""Ways in which a source may be packed."""

import tarfile
import zipfile


def as_folder(source, path):
    return source


def as_tar(source, path):
    with tarfile.open(path, "w") as archive:
        archive.add(source, "artifact/out/store")
    return path


def as_tar_gz(source, path):
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        archive.add(source, ".")
    return path


def as_zip(source, path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(source.rglob("*")):
            archive.write(file, f"out/store/{file.relative_to(source)}")
    return path


PACKERS = [as_folder, as_tar, as_tar_gz, as_zip]
