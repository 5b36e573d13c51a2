"""A run as one document to hand on: what was found, how, at what cost, and how to reproduce it.

`document.py` collects it from the log as plain values; `html_page.py` and `markdown.py` render it; JSON
is the values themselves. Text that a model wrote stays text, never markup. Open `document.py` first.
"""
