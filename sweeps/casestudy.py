"""Case-study export: anchors, class means, embeddings, templates and radials as Parquet, for figures.

Each table has one row per vector: identifying columns, then the coordinates `x0 .. x{p-1}`. `round` is the
round after which the snapshot was taken: the first shows the state before refinement has acted, the last
after.

- `anchors`: `round, class`
- `templates`: `round, template, half`
- `class_means`: `round, client, class, nodes` (calibrated; `nodes` is the number of training nodes)
- `nodes`: `round, client, node, label, role, predicted` (structure-free embeddings; `node` is the id in the
  whole graph)
- `radials`: `round, client, node, half`

Of graph classification, see `fedatlas.algorithms.landscape`:

- `spectrum`: `round, client`; singular values of the covariance of graph representations, largest first
- `landscape`: `round, client, a, b` and the training loss `x0` at w + a d_1 + b d_2
- `sharpness`: `round, client` and the largest eigenvalue `x0` of the Hessian of the training loss
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.federation.contract import Algorithm
from fedatlas.platform.federation.coordinator import Snapshot
from fedatlas.platform.files import written_whole
from fedatlas.platform.graphs.graph import ClientGraph, FederatedGraph, Level

if TYPE_CHECKING:
    import pandas as pd


def require_export(method: Algorithm[Any, Any], level: Level) -> None:
    """Refuse a method that has nothing to export where such items are classified.

    Raises:
        ConfigurationError: naming one that has.
    """
    if not method.exports(level):
        raise ConfigurationError(f"{method.name} has nothing to export: use algorithm=fedgmc")


def write(snapshots: Sequence[Snapshot], federated: FederatedGraph, folder: Path) -> list[Path]:
    """Write the tables of some snapshots; returns their paths."""
    return _write([tables(snapshot, federated) for snapshot in snapshots], folder)


def stage(snapshot: Snapshot, federated: FederatedGraph, folder: Path) -> None:
    """Write the tables of one snapshot of a run that goes on, for `merge`."""
    _write([tables(snapshot, federated)], folder / f"round-{snapshot.round:06d}")


def merge(staged: Path, folder: Path) -> list[Path]:
    """Write what `stage` has left as one table of each kind; returns their paths."""
    import pandas as pd

    rounds = sorted(staged.glob("round-*"))
    return _write(
        [{path.stem: pd.read_parquet(path) for path in each.glob("*.parquet")} for each in rounds], folder
    )


def _write(parts: Sequence[dict[str, pd.DataFrame]], folder: Path) -> list[Path]:
    import pandas as pd

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in sorted(parts[0]):
        path = folder / f"{name}.parquet"
        with written_whole(path) as temporary:
            pd.concat([part[name] for part in parts], ignore_index=True).to_parquet(temporary, index=False)
        written.append(path)
    return written


def tables(snapshot: Snapshot, federated: FederatedGraph) -> dict[str, pd.DataFrame]:
    """Tables of one snapshot."""
    import pandas as pd

    out: dict[str, pd.DataFrame] = {}
    if "anchors" in snapshot.server:
        anchors = snapshot.server["anchors"].T
        out["anchors"] = _table(anchors, round=snapshot.round, **{"class": np.arange(len(anchors))})
    if "templates" in snapshot.server:
        flat, template, half = _halves(snapshot.server["templates"])
        out["templates"] = _table(flat, round=snapshot.round, template=template, half=half)
    kinds = ("class_means", "nodes", "radials", "spectrum", "landscape", "sharpness")
    rows: dict[str, list[pd.DataFrame]] = {kind: [] for kind in kinds}
    for graph, found in zip(federated.clients, snapshot.clients, strict=True):
        _client_tables(snapshot.round, graph, found, rows)
    out.update({name: pd.concat(found, ignore_index=True) for name, found in rows.items() if found})
    return out


def _client_tables(
    number: int, graph: ClientGraph, found: dict[str, np.ndarray], rows: dict[str, list[pd.DataFrame]]
) -> None:
    size = graph.size
    if "ego" in found:
        role = np.where(graph.train, "train", np.where(graph.validation, "validation", "test"))
        rows["nodes"].append(
            _table(
                found["ego"][:size],
                round=number,
                client=graph.client,
                node=graph.nodes,
                label=graph.labels,
                role=role,
                predicted=found["predicted"][:size],
            )
        )
    if "class_means" in found:
        counts = found["class_counts"]
        present = np.flatnonzero(counts > 0)
        rows["class_means"].append(
            _table(
                found["class_means"].T[present],
                round=number,
                client=graph.client,
                **{"class": present},
                nodes=counts[present].astype(int),
            )
        )
    if "radials" in found:
        flat, position, half = _halves(found["radials"][:size])
        rows["radials"].append(
            _table(flat, round=number, client=graph.client, node=graph.nodes[position], half=half)
        )

    if "spectrum" in found:
        rows["spectrum"].append(_table(found["spectrum"][None], round=number, client=graph.client))
        rows["sharpness"].append(_table(found["sharpness"].reshape(1, 1), round=number, client=graph.client))
        points = np.linspace(-1, 1, len(found["landscape"]))
        a, b = (each.ravel() for each in np.meshgrid(points, points, indexing="ij"))
        losses = found["landscape"].reshape(-1, 1)
        rows["landscape"].append(_table(losses, round=number, client=graph.client, a=a, b=b))


def _halves(pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[m, 2, p] as [2m, p], with the position and the half (1 or 2) of every row."""
    count = len(pairs)
    return pairs.reshape(2 * count, -1), np.repeat(np.arange(count), 2), np.tile([1, 2], count)


def _table(vectors: np.ndarray, **columns: Any) -> pd.DataFrame:
    import pandas as pd

    identity = pd.DataFrame(columns, index=range(len(vectors)))
    coordinates = pd.DataFrame(vectors, columns=[f"x{place}" for place in range(vectors.shape[1])])
    return pd.concat([identity, coordinates], axis=1)
