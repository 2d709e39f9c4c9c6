"""The documents of the repository, taken apart: code blocks, links, headings."""

import re
from dataclasses import dataclass
from functools import cached_property
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

    def blocks(self, language: str) -> list[str]:
        """Return the code blocks of a language."""
        return re.findall(rf"^```{language}\n(.*?)^```$", self.text, re.MULTILINE | re.DOTALL)

    @property
    def commands(self) -> list[str]:
        """What is typed into a terminal, and commands in the text."""
        lines = [line.removeprefix("$ ") for block in self.blocks("console") for line in block.splitlines()]
        return [*lines, *re.findall(r"`(python3? [^`]+)`", self.text)]

    @property
    def paths(self) -> list[str]:
        """What stands between backticks, outside of links, and looks like the path of a file or folder here."""
        without_blocks = re.sub(r"^```.*?^```$", "", self.text, flags=re.MULTILINE | re.DOTALL)
        words = re.findall(r"(?<!\[)`([\w./-]+)`", without_blocks)
        return [word for word in words if "/" in word or word.endswith((".py", ".md", ".c", ".h"))]

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


DOCUMENTS = [
    *(Document(path.name) for path in sorted(ROOT.glob("*.md"))),
    *(Document(f"docs/{path.name}") for path in sorted((ROOT / "docs").glob("*.md"))),
]
"""Every document that is written by hand."""
