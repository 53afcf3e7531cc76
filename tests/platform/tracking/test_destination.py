"""Where results go, and that no secret is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedatlas.platform.errors import FedatlasError
from fedatlas.platform.tracking.destination import (
    is_local,
    redacted,
    require_results_folder,
    results_folder,
    store_exists,
    tracking_uri,
)


def test_default_store_is_one_absolute_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("FEDATLAS_RESULTS", "here")
    assert results_folder() == tmp_path / "here"
    assert tracking_uri() == f"sqlite:///{tmp_path}/here/mlflow.db"
    assert is_local(tracking_uri())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert tracking_uri() == "http://127.0.0.1:5000"
    assert not is_local(tracking_uri())


def test_a_store_is_there_if_its_file_is(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    assert not store_exists(f"sqlite:///{path}")
    path.touch()
    assert store_exists(f"sqlite:///{path}")
    assert store_exists(f"sqlite:///{path}?timeout=5")
    assert store_exists("http://127.0.0.1:1")


def test_a_results_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    for place in (file, file / "below"):
        monkeypatch.setenv("FEDATLAS_RESULTS", str(place))
        with pytest.raises(FedatlasError, match=f"{place} cannot be written .*: set FEDATLAS_RESULTS"):
            require_results_folder()
    monkeypatch.setenv("FEDATLAS_RESULTS", str(tmp_path / "a" / "b"))
    assert list(require_results_folder().iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "http://joe:s3cret@host:5000/path",
        "postgresql+psycopg2://joe:s3cret@host/db failed",
        "mysql://joe:a/s3cret@host/db",
        "http://joe:a@s3cret@host",
        "http://joe:a's3cret\"@host",
        "https://s3cret@host",
        "API request to 'http://joe:s3cret@host/api' failed",
        "mssql://host/db?driver=x&password=s3cret&port=1",
        "https://host/?token=s3cret",
    ],
)
def test_secrets_are_redacted(text: str) -> None:
    shown = redacted(text)
    assert "s3cret" not in shown
    assert "joe" not in shown
    assert "host" in shown


def test_the_password_of_an_address_goes_wherever_it_stands() -> None:
    uri = "databricks://joe:s3cret@host"
    assert redacted("no profile joe:s3cret; token s3cret of joe", uri) == "no profile ***; token *** of ***"
    assert redacted("no profile", "http://host") == "no profile"


@pytest.mark.parametrize(
    "text", ["sqlite:////a/b@c/mlflow.db", "http://127.0.0.1:5000", "mail me@example.org", "a@b://c"]
)
def test_what_holds_no_secret_stays_readable(text: str) -> None:
    assert redacted(text).rsplit("/", 1)[-1] == text.rsplit("/", 1)[-1]
