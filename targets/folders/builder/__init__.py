"""Makes the folder of a target from documents: manuals, headers, notes.

`documents.py` cuts them into chunks that know where they stand. `distillation.py` has a model find items in
each chunk, `extraction.py` finds what can be found without one. `writer.py` writes items as the files of a
folder, and `checks.py` compiles the examples. Nobody's edits are overwritten.
"""
