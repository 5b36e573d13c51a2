"""A run as one document to hand on: what was found, how, at what cost, and how to do it again.

`document.py` gathers it from the log as plain values; `html_page.py` and `markdown.py` write it down, and
JSON is the values themselves. What a model wrote is text here, never markup. Open `document.py` first.
"""
