"""Checkpoints: everything a run needs to go on, in one file that holds tensors and plain values only."""

from __future__ import annotations

import io
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fedatlas.platform.errors import FedatlasError
from fedatlas.platform.federation.records import Preparation, RoundRecord
from fedatlas.platform.federation.state import Packed

FORMAT = 2


@dataclass(frozen=True)
class Checkpoint:
    """State after some rounds.

    Attributes:
        next_round: the round that comes next.
        server: packed server state.
        clients: packed client states, [M, ...]; None stands for clients that have just joined.
        records: the finished rounds.
        preparation: what the method exchanged before round 0; None before that has happened.
    """

    next_round: int
    server: Packed
    clients: Packed | None
    records: tuple[RoundRecord, ...]
    preparation: Preparation | None = None

    def save(self, path: Path) -> None:
        """Write to a temporary file in the same folder, flush to disk, rename."""
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "format": FORMAT,
            "next_round": self.next_round,
            "server": self.server,
            "clients": self.clients,
            "records": [record.to_plain() for record in self.records],
            "preparation": None if self.preparation is None else asdict(self.preparation),
        }
        # Made in memory first: torch reports a full disk as a fault of its own format.
        whole = io.BytesIO()
        torch.save(content, whole)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".partial")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(whole.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    @staticmethod
    def load(path: Path) -> Checkpoint:
        """Read a checkpoint.

        Raises:
            FedatlasError: the file cannot be read as a checkpoint of this format.
        """
        try:
            content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            version = content["format"]
            if version == FORMAT:
                before = content["preparation"]
                return Checkpoint(
                    next_round=content["next_round"],
                    server=content["server"],
                    clients=content["clients"],
                    records=tuple(RoundRecord.from_plain(record) for record in content["records"]),
                    preparation=None if before is None else Preparation(**before),
                )
        except Exception as error:
            raise FedatlasError(
                f"checkpoint {path} cannot be read ({type(error).__name__}): delete it to start over"
            ) from error
        raise FedatlasError(
            f"checkpoint {path} has format {version}, this version reads {FORMAT}: delete it to start over"
        )
