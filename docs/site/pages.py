"""Pages that are made and not written: one per method from its docstring, the data sets, the notebooks.

mkdocs calls the functions whose names start with `on_`. Notebooks are executed if `FEDATLAS_NOTEBOOKS=run`.
"""

from __future__ import annotations

import base64
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

HERE = Path(__file__).resolve().parent
NOTEBOOKS = HERE.parent / "notebooks"
SECONDS = 300
"""Most that a cell may take."""
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_config(config: Any) -> Any:
    """Put every method into the navigation."""
    from fedatlas.algorithms.registry import ALGORITHMS

    section = next(entry["Methods"] for entry in config["nav"] if "Methods" in entry)
    section += [{kind.title: f"methods/{name}.md"} for name, kind in ALGORITHMS.items()]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages."""
    from fedatlas.algorithms.registry import ALGORITHMS

    pages = {"methods/index.md": methods_page(), "data-sets.md": data_page()}
    pages |= {f"methods/{name}.md": method_page(name) for name in ALGORITHMS}
    pages |= {f"notebooks/{path.stem}.md": notebook_page(path) for path in sorted(NOTEBOOKS.glob("*.ipynb"))}
    for place, text in pages.items():
        files.append(File.generated(config, place, content=text))
    return files


def methods_page() -> str:
    """Table of all methods."""
    from fedatlas.algorithms.registry import ALGORITHMS

    lines = [
        "# Methods",
        "",
        "Each page is the method's own docstring: what it minimises, what travels, and what was chosen where "
        "the paper is silent. A method of your own runs beside them: [your method](../adding-a-method.md).",
        "",
        "| method | title | backbone | uploads | note |",
        "|---|---|---|---|---|",
    ]
    for name, kind in ALGORITHMS.items():
        uploads = ", ".join(sorted(kind.uploads)) or "nothing"
        lines.append(
            f"| [`{name}`]({name}.md) | {kind.title} | {kind.default_backbone} | {uploads} | {kind.note} |"
        )
    return "\n".join(lines) + "\n"


def method_page(name: str) -> str:
    """Command, docstring and options of one method."""
    from fedatlas.algorithms.registry import ALGORITHMS

    kind = ALGORITHMS[name]
    uploads, downloads = (", ".join(sorted(sent)) or "nothing" for sent in (kind.uploads, kind.downloads))
    takes_part = (
        "Partial participation is possible." if kind.partial_participation else "All clients take part."
    )
    networks = ", ".join(kind.backbones) if kind.backbones else "any"
    lines = [
        f"# {kind.title}",
        "",
        "```",
        f"fedatlas run --dataset minesweeper --clients 5 --rounds 10 --algorithm {name}",
        "```",
        "",
        f"Backbone `{kind.default_backbone}` (possible: {networks}). Uploads: {uploads}; "
        f"downloads: {downloads}. {takes_part}",
        "",
        *([f"!!! note\n    {kind.note}", ""] if kind.note else []),
        f"::: {kind.__module__}.{kind.__qualname__}",
        "    options: {members: false, heading_level: 2}",
        "",
        "## Options",
        "",
        "| option | default | meaning |",
        "|---|---|---|",
    ]
    for option, field in kind.configuration_type.model_fields.items():
        meaning = (field.description or "").replace("|", "\\|")
        lines.append(f"| `{option}` | `{field.default}` | {meaning} |")
    return "\n".join(lines) + "\n"


def data_page() -> str:
    """Table of the catalog."""
    from fedatlas.platform.graphs import catalog

    lines = [
        "# Data sets",
        "",
        "Sizes are those of the published graphs. `fedatlas data describe NAME` computes homophily, degrees "
        "and feature statistics; `fedatlas data list` says what is here. A graph of your own takes the place "
        "of a name: [your graph and your clients](own-data.md).",
        "",
        "| name | family | score | nodes | edges | features | classes | rounds x epochs | licence | source |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in catalog.names():
        entry = catalog.entry(name)
        lines.append(
            f"| `{name}` | {entry.family} | {entry.metric} | {entry.nodes:,} | "
            f"{entry.edges or entry.published_edges:,} | {entry.features:,} | {entry.classes} | "
            f"{entry.rounds} x {entry.epochs} | {entry.licence} | {entry.publication} |"
        )
    lines += [
        "",
        f"Synthetic stand-ins, for timing only: {', '.join(f'`{n}`' for n in catalog.standin_names())}.",
    ]
    return "\n".join(lines) + "\n"


def executed(path: Path) -> Any:
    """A notebook after running all of its cells in an empty folder of results and data."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        before = dict(os.environ)
        os.environ |= {"FEDATLAS_RESULTS": f"{folder}/results", "FEDATLAS_DATA": f"{folder}/data"}
        try:
            NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": folder}}).execute()
        finally:
            os.environ.clear()
            os.environ.update(before)
    return notebook


def notebook_page(path: Path) -> str:
    """A notebook as Markdown, with the outputs of this build or, if it did not run, without any."""
    import nbformat

    run = os.environ.get("FEDATLAS_NOTEBOOKS") == "run"
    notebook = executed(path) if run else nbformat.read(path, as_version=4)
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        parts += [text for output in cell.outputs if (text := _shown(output))]
    where = f"docs/notebooks/{path.name}"
    parts.append(
        f"*This page is the notebook `{where}` of the repository, executed when the site was built.*"
    )
    return "\n\n".join(parts) + "\n"


def _shown(output: Any) -> str:
    if output.output_type == "stream":
        # Progress bars redraw their line.
        text = "\n".join(line.rsplit("\r", 1)[-1] for line in _ANSI.sub("", output.text).splitlines())
        return f"```text\n{text.strip()}\n```" if output.name == "stdout" and text.strip() else ""
    data = output.get("data", {})
    if "image/png" in data:
        inline = data["image/png"].replace("\n", "")
        base64.b64decode(inline)
        return f"![figure](data:image/png;base64,{inline})"
    if "text/html" in data and "<table" in data["text/html"]:
        return re.sub(r"<style.*?</style>", "", data["text/html"], flags=re.DOTALL).replace("\n", "")
    return f"```text\n{data['text/plain']}\n```" if "text/plain" in data else ""
