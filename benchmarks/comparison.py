"""The table of the study `comparison` for one way of dividing the graph, from the results folder.

    python benchmarks/comparison.py [--partition metis-overlap] [--write]

Reads what `fedatlas sweep comparison` left in `FEDATLAS_RESULTS`: the test score at the best-validation
round, mean ± population standard deviation over seeds; the number of seeds where a cell has fewer than the
fullest; the published figure in brackets; and the rank of a method's mean among the methods of its column,
averaged over the columns without a gap. With `--write` the tables go to `docs/results.md` and the trials to
`docs/comparison.csv`.
"""

from __future__ import annotations

import argparse

import pandas as pd
from document import ROOT, replace

from fedatlas.dashboards.literature import published
from fedatlas.platform.graphs.catalog import entry
from fedatlas.platform.tracking import reading
from fedatlas.platform.tracking.store import Store
from fedatlas.sweeps.study import expand, read_study

STUDY = "comparison"
CLIENTS = 10
PAGE = ROOT / "docs" / "results.md"
TRIALS = ROOT / "docs" / "comparison.csv"
COLUMNS = {
    "label": "label",
    "algorithm": "algorithm",
    "backbone": "backbone",
    "dataset": "dataset",
    "partition": "partition",
    "clients": "clients",
    "seed": "seed",
    "best_round": "best_round",
    "val_score": "validation",
    "test_score": "test",
    "last_test_score": "last_test",
    "fingerprint": "fingerprint",
    "run_id": "run_id",
}
"""Names of the tracking store's table and of the file."""
VARIANTS = {"FedAvg (H2GCN)", "FedOpt (GCN)", "FedOpt (H2GCN)"}
"""Rows that no paper prints."""


def labels() -> list[str]:
    """Rows of the study, in its order."""
    _, study = read_study(STUDY)
    found = [each.experiment.label or each.experiment.algorithm for each in expand(study)]
    return list(dict.fromkeys(found))


def trials(partition: str) -> pd.DataFrame:
    """Finished trials, with the columns of the file."""
    table = reading.trials(Store(), STUDY)
    done = table[(table["status"] == "FINISHED") & (table["partition"] == partition)]
    done = done[list(COLUMNS)].rename(columns=COLUMNS).astype({"best_round": int})
    return done.sort_values(["label", "dataset", "seed"]).reset_index(drop=True)


def markdown(done: pd.DataFrame, score: str, order: list[str], printed: bool) -> str:
    """Rows are methods, columns data sets; (n) where a cell has fewer seeds than the most."""
    _, study = read_study(STUDY)
    sets = [name for name in study.datasets if name in set(done["dataset"])]
    groups = done.groupby(["label", "dataset"])[score]
    means = groups.mean().unstack().reindex(index=order, columns=sets)
    full = means.columns[means.notna().all()]
    ranks = means[full].rank(ascending=False).mean(axis=1)
    most = int(groups.size().max())
    keys = done.drop_duplicates("label").set_index("label")["algorithm"]
    lines = [["method", *(entry(name).title for name in sets), *(["average rank"] if printed else [])]]
    lines.append(["---"] * len(lines[0]))
    for label in means.index:
        line = [label]
        for name in sets:
            if pd.isna(means.loc[label, name]):
                line.append("-")
                continue
            scores = groups.get_group((label, name))
            text = f"{100 * scores.mean():.2f}"
            if printed:
                text += f" ± {100 * scores.std(ddof=0):.2f}" if len(scores) > 1 else ""
                text += f" ({len(scores)})" if len(scores) < most else ""
                partition = done["partition"].iloc[0]
                figure = published(name, partition, CLIENTS, keys[label])
                text += f" [{figure.value:.2f}]" if figure and label not in VARIANTS else ""
            line.append(text)
        if printed:
            line.append(f"{ranks[label]:.1f}" if len(full) else "-")
        lines.append(line)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partition", default="metis-overlap")
    parser.add_argument("--write", action="store_true", help="write docs/results.md and docs/comparison.csv")
    given = parser.parse_args()
    done = trials(given.partition)
    if done.empty:
        raise SystemExit(f"no finished trial of {STUDY} with partition={given.partition}")
    order = [label for label in labels() if label in set(done["label"])]
    text = markdown(done, "test", order, printed=True)
    text += "\n\nLast round instead of the best one, mean:\n\n"
    text += markdown(done, "last_test", order, printed=False)
    print(text)
    if given.write:
        replace(given.partition, text, PAGE)
        kept = pd.read_csv(TRIALS, dtype=str)
        kept = kept[kept["partition"] != given.partition]
        for name in ("validation", "test", "last_test"):
            done[name] = done[name].map("{:.6f}".format)
        pd.concat([kept, done.astype(str)]).to_csv(TRIALS, index=False)


if __name__ == "__main__":
    main()
