"""Where results go: the results folder and the tracking store."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from fedatlas.platform.errors import FedatlasError

RESULTS_VARIABLE = "FEDATLAS_RESULTS"
URI_VARIABLE = "MLFLOW_TRACKING_URI"


def results_folder() -> Path:
    """Absolute results folder: `FEDATLAS_RESULTS`, by default `results` in the working directory."""
    return Path(os.environ.get(RESULTS_VARIABLE) or "results").expanduser().resolve()


def require_results_folder() -> Path:
    """The results folder, made if needed.

    Raises:
        FedatlasError: nothing can be written there.
    """
    folder = results_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise FedatlasError(
            f"results folder {folder} cannot be written ({error.strerror}): "
            f"set {RESULTS_VARIABLE} to another folder"
        ) from error
    return folder


def tracking_uri() -> str:
    """`MLFLOW_TRACKING_URI`, by default one sqlite file in the results folder (absolute)."""
    return os.environ.get(URI_VARIABLE) or f"sqlite:///{results_folder() / 'mlflow.db'}"


def is_local(uri: str) -> bool:
    """Whether the store is a file of this machine, so that artifacts go to the results folder too."""
    return uri.startswith("sqlite:")


def store_exists(uri: str) -> bool:
    """Whether a store can be opened without making its file; a server or a database is taken to be there."""
    path = uri.removeprefix("sqlite:///").partition("?")[0]
    return not is_local(uri) or Path(path).is_file()


def redacted(text: str, uri: str = "") -> str:
    """The text without user names, passwords and secret query values in its addresses.

    A password may hold a slash, so everything up to the last `@` of an address goes.

    Args:
        text: to be shown.
        uri: an address whose user name and password go wherever they stand.
    """
    if found := re.match(r"\w[\w+.-]*://(\S+)@", uri):
        user, _, password = found[1].partition(":")
        for secret in (found[1], password, user):
            text = text.replace(secret, "***") if len(secret) > 2 else text
    text = re.sub(r"(\w[\w+.-]*://)\S+@", r"\1***@", text)
    return re.sub(r"(?i)([?&](?:password|passwd|pwd|token|secret|api_key)=)[^&\s]+", r"\1***", text)
