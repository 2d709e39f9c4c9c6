"""A hook of mkdocs: links that leave `docs` for another file of the repository lead to it on GitHub."""

import posixpath
import re
from typing import Any

LINK = re.compile(r"\]\((\.\./[^)\s#]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Return the page with such links; whether they lead somewhere is what the tests of the documents check."""

    def absolute(found: re.Match[str]) -> str:
        place = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), found[1]))
        if place.startswith("docs/"):
            return found[0]
        return f"]({config['repo_url']}/blob/main/{place}{found[2] or ''})"

    return LINK.sub(absolute, markdown)
