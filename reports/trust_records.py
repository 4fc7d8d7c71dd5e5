"""Reads the trust records (reports/trust) that `python -m ci calibrate score` writes."""

from dataclasses import dataclass, field
from pathlib import Path

from ci.calibrate.trust import TrustRecord, load
from ci.exits import UsageError

TRUST_FOLDER = Path(__file__).with_name("trust")


@dataclass(slots=True)
class Trust:
    """Newest first for each GPU model; ``damaged`` names files that are no trust record."""

    records: list[tuple[Path, TrustRecord]] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    def newest(self) -> list[tuple[Path, TrustRecord]]:
        """One for each GPU model."""
        found: dict[str, tuple[Path, TrustRecord]] = {}
        for path, record in self.records:
            found.setdefault(record.gpu_model, (path, record))
        return [found[model] for model in sorted(found)]

    def older(self) -> list[tuple[Path, TrustRecord]]:
        newest = {path for path, _ in self.newest()}
        return [(path, record) for path, record in self.records if path not in newest]


def read_trust(folder: Path = TRUST_FOLDER) -> Trust:
    """Every trust record of a folder; one that is not there is an empty one."""
    trust = Trust()
    for path in sorted(folder.glob("*.json")):
        try:
            trust.records.append((path, load(path)))
        except UsageError as error:
            trust.damaged.append(str(error).replace(str(path), path.name))
    trust.records.sort(key=lambda item: (item[1].newest_utc, item[0].name), reverse=True)
    return trust
