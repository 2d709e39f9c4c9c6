"""The documents of the repository, taken apart: code blocks, tables, links, headings."""

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Document:
    """One Markdown file.

    Args:
        name: its path below the root.
    """

    name: str

    @cached_property
    def text(self) -> str:
        return (ROOT / self.name).read_text(encoding="utf-8")

    @property
    def folder(self) -> Path:
        return (ROOT / self.name).parent

    @property
    def prose(self) -> str:
        """The text without code blocks and without code in lines."""
        return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```$", "", self.text, flags=re.MULTILINE | re.DOTALL))

    def blocks(self, language: str) -> list[str]:
        """Return the code blocks of a language."""
        return re.findall(rf"^```{language}\n(.*?)^```$", self.text, re.MULTILINE | re.DOTALL)

    @property
    def commands(self) -> list[str]:
        """What is typed into a terminal."""
        lines = [line for block in self.blocks("console") for line in block.splitlines()]
        return [line.removeprefix("$ ") for line in lines]

    @property
    def anchors(self) -> set[str]:
        """What links into the document may name."""
        titles = re.findall(r"^#+ (.*)$", self.text, re.MULTILINE)
        return {
            *(re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles),
            *re.findall(r'<a id="(.*?)">', self.text),
        }

    @property
    def links(self) -> list[str]:
        """The targets of the links that stay in the repository."""
        return [target for target in re.findall(r"\]\(([^)\s]+)\)", self.text) if "://" not in target]

    def section(self, heading: str) -> str:
        """Return the text below a heading of the second level."""
        _, found, rest = self.text.partition(f"\n## {heading}\n")
        assert found, f"{self.name} has no section {heading!r}"
        return rest.partition("\n## ")[0]

    def rows(self, heading: str = "", table: int = 0) -> list[list[str]]:
        """Return the cells of a table of a section, or of what stands above all sections, without the table's head."""
        text = self.section(heading) if heading else self.text.partition("\n## ")[0]
        starts = [match.end() for match in re.finditer(r"(?:^|\n)\n(?=\|)", text)]
        lines = takewhile(lambda line: line.startswith("|"), text[starts[table] :].splitlines())
        return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines][2:]


README = Document("README.md")
ARCHITECTURE = Document("docs/ARCHITECTURE.md")
CONTRIBUTING = Document("CONTRIBUTING.md")
CONTRACT = Document("docs/CONTRACT.md")
RESULTS = Document("docs/results.md")

TRAINERS = [Document(f"docs/trainers/{path.name}") for path in sorted((ROOT / "docs" / "trainers").glob("*.md"))]
"""A page for each trainer of others."""

DOCUMENTS = [
    *(Document(path.name) for path in sorted(ROOT.glob("*.md"))),
    *(Document(f"docs/{path.name}") for path in sorted((ROOT / "docs").glob("*.md"))),
    *TRAINERS,
]
"""Every document that is written by hand."""
