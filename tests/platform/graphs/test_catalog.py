"""The catalog describes its sets consistently and leaves no pickle unchecked."""

from __future__ import annotations

import re

import pytest

from fedatlas.platform.errors import ConfigurationError
from fedatlas.platform.graphs import catalog
from fedatlas.platform.graphs.catalog import Entry

ALL = [catalog.entry(name) for name in catalog.names()]
WITH_STANDINS = ALL + [catalog.entry(name) for name in catalog.standin_names()]


NODE_SETS = [entry for entry in ALL if entry.level == "node"]
GRAPH_SETS = [entry for entry in ALL if entry.level == "graph"]


def test_the_sets_are_there_under_their_names() -> None:
    assert {entry.name for entry in NODE_SETS} == {
        *("cora", "citeseer", "pubmed", "amazon-computers", "amazon-photo", "ogbn-arxiv"),
        *("roman-empire", "amazon-ratings", "minesweeper", "tolokers", "questions"),
        *("actor", "chameleon-filtered", "squirrel-filtered"),
    }
    assert {entry.name for entry in GRAPH_SETS} == {
        *("mutag", "bzr", "cox2", "dhfr", "ptc-mr", "aids", "nci1", "enzymes", "dd", "proteins"),
        *("collab", "imdb-binary", "imdb-multi", "letter-low", "letter-med", "letter-high"),
    }
    assert [entry.name for entry in WITH_STANDINS] == [*catalog.names(), *catalog.standin_names()]


@pytest.mark.parametrize("entry", WITH_STANDINS, ids=lambda entry: entry.name)
def test_entries_are_consistent(entry: Entry) -> None:
    assert sum(entry.split) == pytest.approx(1)
    assert (entry.metric == "auc") == (entry.classes == 2 and entry.level == "node")
    assert entry.row_normalise == (entry.library in ("planetoid", "amazon"))
    assert entry.edges is None or entry.edges <= entry.published_edges
    assert bool(entry.files) == (entry.kind != "stand-in")
    assert entry.licence
    assert entry.publication


@pytest.mark.parametrize("entry", ALL, ids=lambda entry: entry.name)
def test_every_hash_is_a_sha256_and_every_pickle_has_one(entry: Entry) -> None:
    for raw in entry.files:
        assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in raw.sha256)
        if raw.closed:
            assert raw.sha256
        else:
            assert raw.name.endswith((".npz", ".csv.gz"))
    if entry.library == "planetoid":
        assert all(raw.closed for raw in entry.files)


def test_no_raw_file_belongs_to_two_sets() -> None:
    files = [raw.name for entry in ALL for raw in entry.files]
    assert len(files) == len(set(files))


def test_protocol_follows_the_published_scripts() -> None:
    assert {entry.name: (entry.rounds, entry.epochs) for entry in NODE_SETS if entry.rounds != 100} == {
        "amazon-computers": (200, 3),
        "amazon-photo": (200, 2),
        "ogbn-arxiv": (200, 2),
    }
    assert catalog.entry("ogbn-arxiv").split == (0.05, 0.475, 0.475)


def test_graphs_follow_the_protocol_of_seal() -> None:
    for entry in GRAPH_SETS:
        assert (entry.rounds, entry.epochs, entry.split) == (200, 1, (0.8, 0.1, 0.1))


def test_groups_are_those_of_the_papers() -> None:
    sizes = {name: len(catalog.entry(name).members) for name in catalog.group_names()}
    assert sizes == {"chem": 7, "biochem": 10, "biochemsn": 13, "biosncv": 9}
    group = catalog.entry("biosncv")
    assert (group.classes, group.features, group.level) == (15, 492, "graph")
    assert set(group.members) <= set(catalog.names())


def test_standin_keeps_the_protocol_of_its_set() -> None:
    entry, original = catalog.entry("standin:ogbn-arxiv"), catalog.entry("ogbn-arxiv")
    assert (entry.rounds, entry.split, entry.metric) == (original.rounds, original.split, original.metric)
    assert (entry.nodes, entry.edges) == (169_343, 1_166_243)
    assert entry.kind == "stand-in"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("coraa", "did you mean cora"),
        ("standin:roman", "standin:roman-empire"),
        ("xyz", "valid: actor, aids, "),
    ],
)
def test_unknown_name_is_refused_with_the_closest_names(name: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=f"unknown data set '{name}'") as refusal:
        catalog.entry(name)
    assert hint in str(refusal.value)
