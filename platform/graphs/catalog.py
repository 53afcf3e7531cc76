"""The catalog: what each data set is, and which raw files hold it.

Eleven sets are one graph whose nodes are classified, sixteen are many graphs that are classified as wholes.
Everything that depends on a data set and not on a method is read from here: task, sizes, protocol, licence
and the sha256 of every raw file. A stand-in (`standin:NAME`) is a synthetic graph with the sizes of NAME;
its entry is the entry of NAME without files. A group (`chem`, ...) is several sets of graphs, one for each
client.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fedatlas.platform.errors import ConfigurationError, unknown_name
from fedatlas.platform.graphs.checksums import SHA256
from fedatlas.platform.graphs.graph import DataKind, Level, Metric

Family = Literal[
    "homophilic",
    "heterophilic",
    "small molecules",
    "bioinformatics",
    "social networks",
    "computer vision",
    "several domains",
]
Library = Literal["planetoid", "amazon", "heterophilous", "ogb", "npz", "tu"]
NodeFeatures = Literal["given", "labels", "attributes", "degrees"]

STANDIN_PREFIX = "standin:"


@dataclass(frozen=True)
class RawFile:
    """One raw file of a data set.

    Attributes:
        name: file name, as PyG and OGB call it.
        sha256: hashes of the copies known to be right; empty if none is known.
        closed: only those copies are accepted. False where the hash of the original distribution is not
            known; such a file must be in a format that cannot carry code (npz of plain arrays, CSV).
    """

    name: str
    sha256: tuple[str, ...] = ()
    closed: bool = True


@dataclass(frozen=True)
class Entry:
    """A data set.

    Attributes:
        name: name in commands and configurations.
        title: name in tables.
        family: homophilic or heterophilic, or the domain of a set of graphs, as the literature groups them.
        metric: score of the task.
        nodes, features, classes: sizes of the published graph, before any preprocessing; of a set of graphs
            the nodes of all, of a group the largest width and class count.
        edges: undirected edges after removing duplicates and self-loops, read from the files; None where
            the files were never at hand.
        published_edges: the number that publications print: citations with duplicates for Cora, CiteSeer and
            ogbn-arxiv, both directions for the Amazon graphs.
        rounds, epochs: communication rounds and local epochs of the protocol.
        split: shares of training, validation and test nodes or graphs.
        row_normalise: the protocol divides each feature row by its sum.
        licence: terms of the data.
        publication: where the data come from.
        library, library_name: class family of PyG or OGB that reads the files, and its name for the set;
            ``npz``: the one file is read as `fedatlas.platform.graphs.formats` describes.
        url: where the one file of an ``npz`` set is downloaded; empty if it is not.
        raw_folder: folder of the raw files, relative to the data folder.
        files: the raw files.
        folder_names: for files whose names say nothing about the set, a folder above them must be called so.
        kind: how `load` comes by the graph.
        level: what is classified, the nodes of one graph or many graphs.
        graphs: number of graphs.
        node_features: of a set of graphs: one-hot node labels, attributes, or one-hot degrees.
        members: of a group: its sets, in the order of the clients.
    """

    name: str
    title: str
    family: Family
    metric: Metric
    nodes: int
    edges: int | None
    published_edges: int
    features: int
    classes: int
    rounds: int
    epochs: int
    licence: str
    publication: str
    library: Library
    library_name: str
    raw_folder: str
    files: tuple[RawFile, ...]
    split: tuple[float, float, float] = (0.2, 0.4, 0.4)
    row_normalise: bool = False
    folder_names: tuple[str, ...] = ()
    kind: DataKind = "real"
    url: str = ""
    level: Level = "node"
    graphs: int = 1
    node_features: NodeFeatures = "given"
    members: tuple[str, ...] = ()

    @property
    def how_to_get(self) -> str:
        """What a user does to have the data, in a few words."""
        if self.kind != "real":
            return "nothing to do"
        if self.members:
            return f"its {len(self.members)} sets"
        if any(raw.name.endswith(".zip") for raw in self.files):
            return "data import"
        source = {"ogb": "OGB", "npz": "fedatlas"}.get(self.library, "PyG")
        return f"data import, or {source} downloads it"


def _file(name: str, closed: bool = True) -> RawFile:
    return RawFile(name, (SHA256[name],) if name in SHA256 else (), closed)


def _planetoid(name: str) -> tuple[RawFile, ...]:
    parts = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
    return tuple(_file(f"ind.{name}.{part}") for part in parts)


_LINQS = "LINQS citation data, no licence stated; packaging MIT"
_SEN = "Sen et al., AI Magazine 2008; files of Yang et al., ICML 2016"
_SHCHUR = "McAuley et al., SIGIR 2015; files of Shchur et al., 2018 (arXiv 1811.05868)"
_PLATONOV = "Platonov et al., ICLR 2023 (arXiv 2302.11640)"

_CORA = Entry(
    name="cora",
    title="Cora",
    family="homophilic",
    metric="accuracy",
    nodes=2_708,
    edges=5_278,
    published_edges=5_429,
    features=1_433,
    classes=7,
    rounds=100,
    epochs=1,
    row_normalise=True,
    licence=_LINQS,
    publication=_SEN,
    library="planetoid",
    library_name="Cora",
    raw_folder="Cora/raw",
    files=_planetoid("cora"),
)

_CITESEER = replace(
    _CORA,
    name="citeseer",
    title="CiteSeer",
    nodes=3_327,
    edges=4_552,
    published_edges=4_732,
    features=3_703,
    classes=6,
    library_name="CiteSeer",
    raw_folder="CiteSeer/raw",
    files=_planetoid("citeseer"),
)

_PUBMED = replace(
    _CORA,
    name="pubmed",
    title="PubMed",
    nodes=19_717,
    edges=44_324,
    published_edges=44_324,
    features=500,
    classes=3,
    publication="Namata et al., MLG 2012; files of Yang et al., ICML 2016",
    library_name="PubMed",
    raw_folder="PubMed/raw",
    files=_planetoid("pubmed"),
)

# The one hash known is that of a converted copy, so another one must be accepted.
_COMPUTERS = Entry(
    name="amazon-computers",
    title="Amazon-Computers",
    family="homophilic",
    metric="accuracy",
    nodes=13_752,
    edges=245_861,
    published_edges=491_722,
    features=767,
    classes=10,
    rounds=200,
    epochs=3,
    row_normalise=True,
    licence="data: none stated; packaging MIT",
    publication=_SHCHUR,
    library="amazon",
    library_name="Computers",
    raw_folder="Computers/raw",
    files=(_file("amazon_electronics_computers.npz", closed=False),),
)

_PHOTO = replace(
    _COMPUTERS,
    name="amazon-photo",
    title="Amazon-Photo",
    nodes=7_650,
    edges=119_081,
    published_edges=238_162,
    features=745,
    classes=8,
    epochs=2,
    library_name="Photo",
    raw_folder="Photo/raw",
    files=(_file("amazon_electronics_photo.npz", closed=False),),
)

_ARXIV = Entry(
    name="ogbn-arxiv",
    title="ogbn-arxiv",
    family="homophilic",
    metric="accuracy",
    nodes=169_343,
    edges=None,
    published_edges=1_166_243,
    features=128,
    classes=40,
    rounds=200,
    epochs=2,
    split=(0.05, 0.475, 0.475),
    licence="ODC-BY 1.0",
    publication="Hu et al., NeurIPS 2020; Wang et al., QSS 2020",
    library="ogb",
    library_name="ogbn-arxiv",
    raw_folder="ogbn_arxiv/raw",
    folder_names=("ogbn_arxiv", "ogbn-arxiv", "arxiv"),
    files=(
        _file("edge.csv.gz", closed=False),
        _file("node-feat.csv.gz", closed=False),
        _file("node-label.csv.gz", closed=False),
        _file("node_year.csv.gz", closed=False),
        _file("num-node-list.csv.gz", closed=False),
        _file("num-edge-list.csv.gz", closed=False),
    ),
)

_ROMAN = Entry(
    name="roman-empire",
    title="Roman-empire",
    family="heterophilic",
    metric="accuracy",
    nodes=22_662,
    edges=32_927,
    published_edges=32_927,
    features=300,
    classes=18,
    rounds=100,
    epochs=1,
    licence="MIT (repository)",
    publication=_PLATONOV,
    library="heterophilous",
    library_name="Roman-empire",
    raw_folder="roman_empire/raw",
    files=(_file("roman_empire.npz"),),
)

_RATINGS = replace(
    _ROMAN,
    name="amazon-ratings",
    title="Amazon-ratings",
    nodes=24_492,
    edges=93_050,
    published_edges=93_050,
    classes=5,
    library_name="Amazon-ratings",
    raw_folder="amazon_ratings/raw",
    files=(_file("amazon_ratings.npz"),),
)

_MINESWEEPER = replace(
    _ROMAN,
    name="minesweeper",
    title="Minesweeper",
    metric="auc",
    nodes=10_000,
    edges=39_402,
    published_edges=39_402,
    features=7,
    classes=2,
    library_name="Minesweeper",
    raw_folder="minesweeper/raw",
    kind="generated",
    files=(_file("minesweeper.npz"),),
)

_TOLOKERS = replace(
    _ROMAN,
    name="tolokers",
    title="Tolokers",
    metric="auc",
    nodes=11_758,
    edges=519_000,
    published_edges=519_000,
    features=10,
    classes=2,
    publication=f"{_PLATONOV}; data of Likhobaba et al., 2023 (Toloka)",
    library_name="Tolokers",
    raw_folder="tolokers/raw",
    files=(_file("tolokers.npz"),),
)

_QUESTIONS = replace(
    _ROMAN,
    name="questions",
    title="Questions",
    metric="auc",
    nodes=48_921,
    edges=153_540,
    published_edges=153_540,
    features=301,
    classes=2,
    library_name="Questions",
    raw_folder="questions/raw",
    files=(_file("questions.npz"),),
)

_FILTERED = "filtered by Platonov et al., ICLR 2023 (arXiv 2302.11640)"
_HETEROPHILOUS_GRAPHS = "https://github.com/yandex-research/heterophilous-graphs/raw/main/data/"

_ACTOR = replace(
    _ROMAN,
    name="actor",
    title="Actor",
    nodes=7_600,
    edges=26_659,
    published_edges=26_659,
    features=932,
    classes=5,
    publication="Tang et al., KDD 2009; Pei et al., ICLR 2020 (arXiv 2002.05287)",
    library="npz",
    library_name="actor",
    raw_folder="actor/raw",
    url=_HETEROPHILOUS_GRAPHS + "actor.npz",
    files=(RawFile("actor.npz", ("c350eef06b2c2a9bf8218be2b57cac6d4003d0922eb597a039e9123f75817816",)),),
)

_CHAMELEON = replace(
    _ACTOR,
    name="chameleon-filtered",
    title="Chameleon (filtered)",
    nodes=890,
    edges=8_854,
    published_edges=8_854,
    features=2_325,
    publication=f"Rozemberczki et al., J. Complex Networks 2021; {_FILTERED}",
    library_name="chameleon_filtered",
    raw_folder="chameleon_filtered/raw",
    url=_HETEROPHILOUS_GRAPHS + "chameleon_filtered.npz",
    files=(
        RawFile(
            "chameleon_filtered.npz", ("bf46f07e1fb5249280447e5fe3100f3e82fc4b93ad1e13ffcfdec924b6ac0bb5",)
        ),
    ),
)

_SQUIRREL = replace(
    _CHAMELEON,
    name="squirrel-filtered",
    title="Squirrel (filtered)",
    nodes=2_223,
    edges=46_998,
    published_edges=46_998,
    features=2_089,
    library_name="squirrel_filtered",
    raw_folder="squirrel_filtered/raw",
    url=_HETEROPHILOUS_GRAPHS + "squirrel_filtered.npz",
    files=(
        RawFile(
            "squirrel_filtered.npz", ("f06370ffb3116c5de8b7a600005400b2293c025e0ce2f6916d8201a825505ac7",)
        ),
    ),
)

_TU = "Morris et al., 2020 (TUDataset, arXiv 2007.08663)"
_SHARED = ("A", "graph_indicator", "graph_labels")


def _graphs(
    title: str,
    family: Family,
    graphs: int,
    classes: int,
    nodes: int,
    edges: int,
    features: int,
    publication: str,
    node_features: NodeFeatures = "labels",
    archive: bool = False,
) -> Entry:
    """A set of the TU collection; of its raw files only those that are read belong to it."""
    extra = {"labels": ("node_labels",), "attributes": ("node_attributes",)}.get(node_features, ())
    names = (f"{title}.zip",) if archive else tuple(f"{title}_{part}.txt" for part in (*_SHARED, *extra))
    return Entry(
        name=title.lower().replace("_", "-"),
        title=title,
        family=family,
        metric="accuracy",
        nodes=nodes,
        edges=edges,
        published_edges=edges,
        features=features,
        classes=classes,
        rounds=200,
        epochs=1,
        split=(0.8, 0.1, 0.1),
        licence="none stated",
        publication=f"{publication}; {_TU}",
        library="tu",
        library_name=title,
        raw_folder=f"{title}/raw",
        files=tuple(map(_file, names)),
        level="graph",
        graphs=graphs,
        node_features=node_features,
    )


_MOLECULES: Family = "small molecules"
_PROTEINS: Family = "bioinformatics"
_SOCIAL: Family = "social networks"
_VISION: Family = "computer vision"
_SUTHERLAND = "Sutherland et al., J. Chem. Inf. Comput. Sci. 2003"
_BORGWARDT = "Borgwardt et al., Bioinformatics 2005"
_YANARDAG = "Yanardag and Vishwanathan, KDD 2015"
_RIESEN = "Riesen and Bunke, SSPR 2008"

_GRAPH_SETS = (
    _graphs("MUTAG", _MOLECULES, 188, 2, 3_371, 3_721, 7, "Debnath et al., J. Med. Chem. 1991"),
    _graphs("BZR", _MOLECULES, 405, 2, 14_479, 15_535, 53, _SUTHERLAND),
    _graphs("COX2", _MOLECULES, 467, 2, 19_252, 20_289, 35, _SUTHERLAND),
    _graphs("DHFR", _MOLECULES, 756, 2, 32_075, 33_676, 53, _SUTHERLAND),
    _graphs("PTC_MR", _MOLECULES, 344, 2, 4_915, 5_054, 18, "Helma et al., Bioinformatics 2001"),
    _graphs("AIDS", _MOLECULES, 2_000, 2, 31_385, 32_390, 38, _RIESEN),
    _graphs("NCI1", _MOLECULES, 4_110, 2, 122_747, 132_753, 37, "Wale et al., Knowl. Inf. Syst. 2008"),
    _graphs("ENZYMES", _PROTEINS, 600, 6, 19_580, 37_282, 3, _BORGWARDT),
    _graphs("DD", _PROTEINS, 1_178, 2, 334_925, 843_046, 89, "Dobson and Doig, JMB 2003", archive=True),
    _graphs("PROTEINS", _PROTEINS, 1_113, 2, 43_471, 81_044, 3, _BORGWARDT),
    _graphs("COLLAB", _SOCIAL, 5_000, 3, 372_474, 12_286_079, 492, _YANARDAG, "degrees", archive=True),
    _graphs("IMDB-BINARY", _SOCIAL, 1_000, 2, 19_773, 96_531, 136, _YANARDAG, "degrees"),
    _graphs("IMDB-MULTI", _SOCIAL, 1_500, 3, 19_502, 98_903, 89, _YANARDAG, "degrees"),
    _graphs("Letter-low", _VISION, 2_250, 15, 10_522, 7_046, 2, _RIESEN, "attributes"),
    _graphs("Letter-med", _VISION, 2_250, 15, 10_518, 7_213, 2, _RIESEN, "attributes"),
    _graphs("Letter-high", _VISION, 2_250, 15, 10_507, 10_125, 2, _RIESEN, "attributes"),
)

_HOMOPHILIC = (_CORA, _CITESEER, _PUBMED, _COMPUTERS, _PHOTO, _ARXIV)
_HETEROPHILIC = (_ROMAN, _RATINGS, _MINESWEEPER, _TOLOKERS, _QUESTIONS)
_FURTHER = (_ACTOR, _CHAMELEON, _SQUIRREL)
_ALL = _HOMOPHILIC + _HETEROPHILIC + _FURTHER + _GRAPH_SETS
_ENTRIES: dict[str, Entry] = {each.name: each for each in _ALL}

_CHEM = ("mutag", "bzr", "cox2", "dhfr", "ptc-mr", "aids", "nci1")
_BIO = ("enzymes", "dd", "proteins")
_SN = ("collab", "imdb-binary", "imdb-multi")
_CV = ("letter-high", "letter-low", "letter-med")
_GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "chem": ("Chem", _CHEM),
    "biochem": ("BioChem", _CHEM + _BIO),
    "biochemsn": ("BioChemSn", _CHEM + _BIO + _SN),
    "biosncv": ("BioSnCv", _BIO + _SN + _CV),
}
"""Groups of FedStar and SEAL: title and members."""

_STANDINS = ("roman-empire", "amazon-ratings", "questions", "ogbn-arxiv")


def names() -> tuple[str, ...]:
    """Names of the published data sets, in the order of the papers' tables; first the sets of one graph."""
    return tuple(_ENTRIES)


def group_names() -> tuple[str, ...]:
    """Names of the groups, whose clients hold a data set each."""
    return tuple(_GROUPS)


def standin_names() -> tuple[str, ...]:
    """Names of the synthetic stand-ins."""
    return tuple(STANDIN_PREFIX + name for name in _STANDINS)


def entry(name: str) -> Entry:
    """Entry of a data set, of a group, of a stand-in, or of a graph that a user brings by its path.

    A stand-in has the protocol and sizes of the set it stands in for, `kind` "stand-in" and no files; its
    edge count is the published number, read as undirected edges.

    Raises:
        ConfigurationError: there is no such name.
        DataError: a path holds no usable graph.
    """
    from fedatlas.platform.graphs import own

    if own.is_path(name):
        return own.entry(name)
    if name in _ENTRIES:
        return _ENTRIES[name]
    if name in _GROUPS:
        return _group(name)
    if name in standin_names():
        original = _ENTRIES[name.removeprefix(STANDIN_PREFIX)]
        return replace(
            original,
            name=name,
            title=f"{original.title} (stand-in)",
            edges=original.published_edges,
            licence="none: synthetic",
            kind="stand-in",
            files=(),
        )
    if Path(name).exists():
        raise ConfigurationError(
            f"unknown data set '{name}': for the folder or file of that name write ./{name}"
        )
    raise unknown_name("data set", name, names() + group_names() + standin_names(), "fedatlas data list")


def _group(name: str) -> Entry:
    title, members = _GROUPS[name]
    sets = [_ENTRIES[member] for member in members]
    edges = sum(each.published_edges for each in sets)
    return replace(
        sets[0],
        name=name,
        title=title,
        family=sets[0].family if len({each.family for each in sets}) == 1 else "several domains",
        nodes=sum(each.nodes for each in sets),
        edges=edges,
        published_edges=edges,
        features=max(each.features for each in sets),
        classes=max(each.classes for each in sets),
        publication="Xie et al., NeurIPS 2021; Tan et al., AAAI 2023",
        library_name=title,
        raw_folder="",
        files=(),
        graphs=sum(each.graphs for each in sets),
        members=members,
    )
