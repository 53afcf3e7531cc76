"""One experiment: a scenario, a method and how they run, fully described and checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedatlas.algorithms.backbones import backbone_type
from fedatlas.algorithms.presets import EXPERIMENT_KEYS, preset
from fedatlas.algorithms.references import absolute, code_sha256, is_reference, short
from fedatlas.algorithms.registry import ALGORITHMS, Method, algorithm_type, create
from fedatlas.platform.errors import ConfigurationError, invalid_values, unknown_name
from fedatlas.platform.federation import privacy
from fedatlas.platform.federation.cohort import Precision
from fedatlas.platform.federation.coordinator import EvaluationPoint, participating
from fedatlas.platform.federation.placement import PLACEMENTS
from fedatlas.platform.federation.privacy import DELTA, NoiseTarget, Privacy
from fedatlas.platform.federation.scores import ClientWeighting
from fedatlas.platform.graphs.catalog import Entry, entry
from fedatlas.platform.graphs.federated import (
    Scenario,
    concrete,
    content,
    count_clients,
    data_name,
    is_brought,
    partition_name,
)
from fedatlas.platform.graphs.partition import metis_binding

SCENARIO_FIELDS = tuple(Scenario.model_fields)
EXECUTION_FIELDS = ("placement", "clients_per_actor", "client_cpus", "client_gpus", "device")
"""Where an experiment runs. Its results do not depend on them, so neither does its fingerprint."""
CLIENTS = 10
"""Number of clients if none is given and the partition does not say it."""
PROTOCOL_VERSION = 1
"""Goes up when a change to splits, random streams, training or scoring alters results of every method."""


_SELDOM = ("split", "metric", *privacy.SETTINGS)
"""Settings that are tracked only where they are set."""


@cache
def _metis() -> str:
    """Looked up once: a study identifies thousands of trials."""
    return metis_binding()


class Experiment(Scenario):
    """Everything that decides the numbers of one run, and where it runs.

    `rounds`, `epochs`, `backbone` and `options` are what was asked for; `resolve` fills in the defaults of
    the protocol, the method and its presets.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    algorithm: str
    """Name of a method, see `fedatlas algorithms`; or `package.module:Class`, `path/to/file.py:Class`."""
    backbone: str | None = None
    """Name of a backbone, or a reference likewise; the method's own if not given."""
    label: str | None = None
    """Name of the row in tables; the method's title if not given."""
    rounds: int | None = Field(default=None, ge=1)
    """Communication rounds; the protocol's number for the data set if not given."""
    epochs: int | None = Field(default=None, ge=1)
    """Local epochs per round; the protocol's number for the data set if not given."""
    evaluation: EvaluationPoint = "after_local"
    """When clients are scored."""
    weighting: ClientWeighting = "uniform"
    """Weights of the mean over clients."""
    participation: float | None = Field(default=None, gt=0, le=1)
    """Share of the clients that train in each round, drawn anew for each; all if not given."""
    precision: Precision = "float32"
    """Floating-point type of training."""
    clip_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Bound of the L2 norm of each client's update, see `fedatlas.platform.federation.privacy`."""
    noise_multiplier: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Standard deviation of Gaussian noise on updates, in units of `clip_norm`."""
    noise_target: NoiseTarget | None = None
    """What carries the noise: every `upload` (the default), or the `sum` (with `secure_aggregation`)."""
    noise_delta: float | None = Field(default=None, gt=0, lt=1)
    """Delta for which epsilon is given; 1e-5 by default."""
    secure_aggregation: bool | None = None
    """Uploads are masked in pairs, so that the server sees their sum only."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the method."""
    placement: str = "auto"
    """auto, inline, actors (one per client) or packed."""
    clients_per_actor: int | None = Field(default=None, ge=1)
    """Clients per actor of ``packed``."""
    client_cpus: float | None = Field(default=None, ge=0)
    """CPUs of each client actor."""
    client_gpus: float | None = Field(default=None, ge=0)
    """GPU share of each client; 0.1 where the cluster has GPUs and nothing is given."""
    device: str = "auto"
    """Device of ``inline``: cpu or cuda; auto is the CPU. Actors use what Ray assigned to them."""

    @field_validator("algorithm", "backbone")
    @classmethod
    def _reference(cls, value: str | None) -> str | None:
        return value if value is None else absolute(value)


class Resolved(BaseModel):
    """An experiment with nothing left open.

    Attributes:
        experiment: as asked, with every default filled in and `options` complete.
        aggregation: how weights travel, for tables.
        method_version: version of the method's code.
        code: hash of the source of a method or backbone that does not come with the package, or None.
    """

    model_config = ConfigDict(frozen=True)

    experiment: Experiment
    aggregation: str
    method_version: int
    code: str | None = None

    def method(self) -> Method:
        """The configured method."""
        given = self.experiment
        return create(given.algorithm, given.backbone, given.options)

    def scenario(self) -> Scenario:
        """Which data the clients hold."""
        return Scenario(**{name: getattr(self.experiment, name) for name in SCENARIO_FIELDS})

    def identity(self) -> dict[str, Any]:
        """What decides the numbers, as plain values. The label and the place of execution do not."""
        values = self.experiment.model_dump(mode="json")
        for name in (*EXECUTION_FIELDS, "label"):
            values.pop(name)
        values |= {key: short(values[key]) for key in ("algorithm", "backbone") if values.get(key)}
        if self.code is not None:
            values["code"] = self.code
        # An own graph and a membership file are what they hold, wherever they lie.
        values |= content(self.experiment)
        # So that a key which a later version adds, and which is not set, does not make old results stale.
        values["options"] = _given(values["options"])
        values = _given(values)
        values["protocol_version"] = PROTOCOL_VERSION
        values["method_version"] = self.method_version
        if self.experiment.partition in ("metis", "metis-overlap"):
            values["metis"] = _metis()
        return values

    def fingerprint(self, data_sha256: str) -> str:
        """Hash of the identity and the data: equal fingerprints mean equal numbers."""
        text = json.dumps({**self.identity(), "data": data_sha256}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def identity_hash(self) -> str:
        """Hash of the identity alone: trials are found by it where the data cannot be read."""
        text = json.dumps(self.identity(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def params(self) -> dict[str, Any]:
        """Parameters as they are tracked."""
        values = self.experiment.model_dump(mode="json")
        options = values.pop("options")
        for name in EXECUTION_FIELDS:
            values.pop(name)
        values |= {"dataset": self.data_name, "partition": self.partition_name}
        values |= {key: short(values[key]) for key in ("algorithm", "backbone") if values[key]}
        for name in _SELDOM:
            if values[name] is None:
                values.pop(name)
        flat = {f"method.{key}": value for key, value in options.items()}
        return {**values, "aggregation": self.aggregation, **flat}

    def protection(self) -> Privacy:
        """How uploads are protected."""
        given = {name: getattr(self.experiment, name) for name in privacy.SETTINGS}
        return Privacy(**{name: value for name, value in given.items() if value is not None})

    @property
    def cell(self) -> str:
        """Name of the run: what distinguishes it within a study."""
        given = self.experiment
        place = f"{self.partition_name}-{given.clients}"
        return f"{given.label}/{self.data_name}/{place}/seed-{given.seed}"

    @property
    def data_name(self) -> str:
        """Name of the data set in tables."""
        return data_name(self.experiment.dataset)

    @property
    def partition_name(self) -> str:
        """Name of the partition in tables."""
        return partition_name(self.experiment.partition)


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _check_level(algorithm: str, published: Entry) -> None:
    """Refuse a method that classifies something else.

    Raises:
        ConfigurationError: with the methods that fit.
    """
    if published.level in algorithm_type(algorithm).levels:
        return
    fitting = ", ".join(name for name, kind in ALGORITHMS.items() if published.level in kind.levels)
    what = "one graph whose nodes are classified" if published.level == "node" else "graphs to classify"
    raise ConfigurationError(
        f"algorithm={algorithm} does not fit {published.name}, which is {what}: use one of {fitting}"
    )


def experiment(values: Mapping[str, Any]) -> Experiment:
    """Check the values of an experiment.

    Raises:
        ConfigurationError: names the key, the value and what is allowed.
    """
    for key in values:
        if key not in Experiment.model_fields:
            if _is_option(str(values.get("algorithm")), key):
                raise ConfigurationError(
                    f"{key} is an option of {values['algorithm']}, not a setting of the experiment: write "
                    f"options: {{{key}: ...}} in a study, options={{'{key}': ...}} in Python"
                )
            raise unknown_name("configuration key", key, Experiment.model_fields)
    values = dict(values)
    if values.get("clients") is None:
        partition, dataset = str(values.get("partition", "metis")), str(values.get("dataset"))
        values["clients"] = count_clients(dataset, partition) if is_brought(partition) else CLIENTS
    try:
        return Experiment(**values)
    except ValidationError as error:
        raise invalid_values(error) from error


def _is_option(algorithm: str, key: str) -> bool:
    with suppress(ConfigurationError):
        return key in algorithm_type(algorithm).configuration_type.model_fields
    return False


def resolve(given: Experiment) -> Resolved:
    """Fill in defaults. Precedence: what is given, the method's preset for the data set, the protocol.

    Raises:
        ConfigurationError: unknown data set, method, backbone, placement or option, or a value out of range.
    """
    published = entry(given.dataset)
    kind = algorithm_type(given.algorithm)
    if given.placement not in PLACEMENTS:
        raise unknown_name("placement", given.placement, PLACEMENTS)
    if given.device not in ("auto", "cpu", "cuda"):
        raise unknown_name("device", given.device, ("auto", "cpu", "cuda"))
    for name in EXPERIMENT_KEYS:
        if given.options.get(name, getattr(given, name)) != getattr(given, name):
            raise ConfigurationError(f"{name} is a setting of the experiment, not an option of the method")
    if given.participation is not None and not kind.partial_participation:
        raise ConfigurationError(
            f"participation={given.participation}: {kind.title} needs all clients in each round: leave it out"
        )
    share = given.participation
    tuned = preset(given.algorithm, given.dataset)
    rounds = given.rounds or tuned.pop("rounds", published.rounds)
    epochs = given.epochs or tuned.pop("epochs", published.epochs)
    features = tuned.pop("features", "default") if given.features == "default" else given.features
    backbone = given.backbone or tuned.pop("backbone", None)
    options = {key: value for key, value in tuned.items() if key not in EXPERIMENT_KEYS}
    options.update(given.options)
    if "epochs" in kind.configuration_type.model_fields:
        options["epochs"] = epochs
    _check_level(given.algorithm, published)
    method = create(given.algorithm, backbone, options)
    method.require(published.level)
    about = method.describe()
    scenario = Scenario(**{name: getattr(given, name) for name in SCENARIO_FIELDS})
    filled = {
        **concrete(scenario.model_copy(update={"features": features})),
        "rounds": rounds,
        "epochs": epochs,
        "backbone": given.backbone if is_reference(given.backbone or "") else about["backbone"],
        "label": given.label or kind.title,
        "options": method.configuration.model_dump(mode="json"),
    }
    filled |= _privacy_defaults(given)
    resolved = Resolved(
        experiment=given.model_copy(update=filled),
        aggregation=about["aggregation"],
        method_version=kind.version,
        code=code_sha256(kind, *(() if given.backbone is None else (backbone_type(given.backbone),))),
    )
    clients = 1 if given.uncut else given.clients
    resolved.protection().require(method, clients if share is None else participating(share, clients))
    return resolved


def require_blind(given: Experiment) -> None:
    """Refuse settings under which validation scores depend on test nodes.

    Raises:
        ConfigurationError: names the setting and another value.
    """
    if given.weighting == "test_nodes":
        raise ConfigurationError(
            "weighting=test_nodes weighs clients by their test nodes, which a search must not see: "
            "use weighting=uniform or nodes"
        )


def _privacy_defaults(given: Experiment) -> dict[str, Any]:
    """What protects nothing counts as not given, so that it does not change the identity.

    Raises:
        ConfigurationError: a setting of the noise without noise.
    """
    if given.noise_multiplier is None:
        for name in ("noise_target", "noise_delta"):
            if getattr(given, name) is not None:
                raise ConfigurationError(
                    f"{name}={getattr(given, name)} belongs to noise_multiplier, which is not set"
                )
    noisy = given.noise_multiplier is not None
    return {
        "secure_aggregation": given.secure_aggregation or None,
        "noise_target": given.noise_target or ("upload" if noisy else None),
        "noise_delta": given.noise_delta or (DELTA if noisy else None),
    }
