"""All methods, in the order of the tables, and how an instance is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from fedatlas.algorithms.adafgl import AdaFGL
from fedatlas.algorithms.fedaux import FedAux
from fedatlas.algorithms.fedavg import FedAvg, FedOpt
from fedatlas.algorithms.fedgmc import FedGMC
from fedatlas.algorithms.fedgnn import FedGNN
from fedatlas.algorithms.fedgta import FedGTA
from fedatlas.algorithms.fedici import FedICI
from fedatlas.algorithms.fediih import FedIIH
from fedatlas.algorithms.fednova import FedNova
from fedatlas.algorithms.fedper import FedPer
from fedatlas.algorithms.fedprox import FedProx
from fedatlas.algorithms.fedpub import FedPUB
from fedatlas.algorithms.fedsage import FedSage, FedSagePlus
from fedatlas.algorithms.fedssa import FedSSA
from fedatlas.algorithms.fedstar import FedStar
from fedatlas.algorithms.fedtad import FedTAD
from fedatlas.algorithms.gcfl import GCFL, GCFLPlus
from fedatlas.algorithms.local import Local
from fedatlas.algorithms.references import ALGORITHM_GROUP, checked, discovered, is_reference, load
from fedatlas.algorithms.scaffold import SCAFFOLD
from fedatlas.algorithms.seal import SEAL, SEALB
from fedatlas.platform.errors import invalid_values, unknown_name
from fedatlas.platform.federation.contract import Algorithm, MethodConfiguration

Method = Algorithm[Any, Any]

ALGORITHMS: dict[str, type[Method]] = {
    "local": Local,
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedopt": FedOpt,
    "scaffold": SCAFFOLD,
    "fednova": FedNova,
    "fedper": FedPer,
    "gcfl": GCFL,
    "gcflplus": GCFLPlus,
    "fedgnn": FedGNN,
    "fedsage": FedSage,
    "fedsageplus": FedSagePlus,
    "fedpub": FedPUB,
    "fedgta": FedGTA,
    "fedaux": FedAux,
    "adafgl": AdaFGL,
    "fedtad": FedTAD,
    "fediih": FedIIH,
    "fedici": FedICI,
    "fedssa": FedSSA,
    "fedgmc": FedGMC,
    "fedstar": FedStar,
    "sealb": SEALB,
    "seal": SEAL,
}


def algorithm_type(name: str) -> type[Method]:
    """The class of a method.

    Args:
        name: a key of `ALGORITHMS`, the name of an entry point of the group `fedatlas.algorithms`, or a
            reference, see `fedatlas.algorithms.references`.

    Raises:
        ConfigurationError: unknown name, with the closest valid ones.
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    base: type[Method] = Algorithm  # type: ignore[type-abstract]
    if is_reference(name):
        return load(name, base)
    installed = discovered(ALGORITHM_GROUP)
    if name in installed:
        return checked(installed[name].load(), base, f"{name} ({installed[name].value})")
    raise unknown_name("algorithm", name, {*ALGORITHMS, *installed}, "fedatlas algorithms")


def create(name: str, backbone: str | None = None, options: Mapping[str, Any] | None = None) -> Method:
    """A configured method.

    Args:
        name: method, see `algorithm_type`.
        backbone: name of a network; None for the method's own.
        options: values of the method's configuration.

    Raises:
        ConfigurationError: unknown method, backbone, option or value.
    """
    return algorithm_type(name).create(validate(name, options or {}), backbone)


def validate(name: str, options: Mapping[str, Any]) -> MethodConfiguration:
    """Check the options of a method.

    Raises:
        ConfigurationError: names the option, the value and what is allowed.
    """
    kind = algorithm_type(name).configuration_type
    for key in options:
        if key not in kind.model_fields:
            raise unknown_name(f"option of {name}", key, kind.model_fields)
    try:
        return kind(**options)
    except ValidationError as error:
        raise invalid_values(error, f"algorithm {name}") from error
