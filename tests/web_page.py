"""A check of the pages that studies write."""

from __future__ import annotations

import re
from html.parser import HTMLParser


class Links(HTMLParser):
    """Collects what a page asks for, and its tags."""

    def __init__(self):
        super().__init__()
        self.addresses, self.tags, self.open = [], [], []

    def handle_starttag(self, tag, attrs):
        """Note a tag and the addresses it names."""
        self.tags.append(tag)
        if tag not in {"meta", "link", "img", "source", "br"}:
            self.open.append(tag)
        self.addresses += [value for name, value in attrs if name in {"href", "src", "srcset", "action", "data"}]

    def handle_endtag(self, tag):
        """Close the innermost tag."""
        assert self.open.pop() == tag


def check_page(text):
    """Return the tags of a page; they must be balanced, and the page must ask the network for nothing."""
    page = Links()
    page.feed(text)
    page.close()
    assert page.open == []
    assert page.addresses
    assert all(address.startswith(("#", "data:")) for address in page.addresses)
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert not re.search(r"url\(|@import|https?://", text)
    return page.tags
