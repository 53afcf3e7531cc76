"""Puts what a benchmark prints into its section of `docs/benchmarks.md`."""

from __future__ import annotations

import re
import subprocess
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"


def replace(section: str, text: str, page: Path = PAGE) -> None:
    """Replace what stands between the marks of a section.

    Raises:
        SystemExit: the page has no such section.
    """
    begin, end = f"<!-- {section}: made by its command -->", f"<!-- end of {section} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    before = page.read_text(encoding="utf-8")
    if not pattern.search(before):
        raise SystemExit(f"{page} has no section {section}")
    made = f"{begin}\n\n{text.strip()}\n\n{end}"
    page.write_text(pattern.sub(lambda _: made, before), encoding="utf-8")


def stamp(*versions: str) -> str:
    """Date, commit, processor and versions, for above a table."""
    words = ("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    commit = done.stdout.strip() or "unknown"
    return f"{date.today().isoformat()}, commit {commit}, {processor()}, " + ", ".join(versions) + "."


def processor() -> str:
    """Number and name of the CPUs."""
    import os

    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)$", info.read_text(), re.MULTILINE) if info.exists() else []
    return f"{os.cpu_count()} x {names[0] if names else 'CPU'}"


def table(headings: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; the first column is to the left."""
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
