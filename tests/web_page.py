"""A check of the pages that studies write."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_VOID = {"meta", "link", "img", "source", "br"}


class Links(HTMLParser):
    """Collects what a page asks for, its tags, and its text without scripts."""

    def __init__(self):
        super().__init__()
        self.addresses, self.tags, self.open, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        """Note a tag and the addresses it names."""
        self.tags.append(tag)
        if tag not in _VOID:
            self.open.append(tag)
        self.addresses += [value for name, value in attrs if name in {"href", "src", "srcset", "action", "data"}]

    def handle_startendtag(self, tag, attrs):
        """Note a tag that is closed at once."""
        self.tags.append(tag)

    def handle_endtag(self, tag):
        """Close the innermost tag."""
        assert self.open.pop() == tag

    def handle_data(self, data):
        """Keep text; what scripts ask for is seen in a browser only."""
        if self.open and self.open[-1] != "script":
            self.text.append(data)


def check_page(text):
    """Return the tags of a page; they must be balanced, and the page must ask the network for nothing."""
    page = Links()
    page.feed(text)
    page.close()
    assert page.open == []
    assert page.addresses
    assert all(address.startswith(("#", "data:")) for address in page.addresses)
    assert not {"link", "iframe"} & set(page.tags)
    assert not re.search(r"url\(|@import|https?://", "".join(page.text))
    return page.tags
