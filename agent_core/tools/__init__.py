"""The tools that a model, or a coding agent, works on a kernel with: one implementation for all of them.

A tool is a description, a schema of its arguments, a schema of its answer, and a function. It answers in a
few hundred tokens unless more is asked for, says what would help next, and never raises at the model: a wrong
call is answered with what is wrong and how to mend it. Tools know no target; a target says what it adds
(`targets.base.ToolParts`). They know no log either: `Workbench` is given what they use, and the process keeps
what came of each call. Open `registry.py` first, then `workbench.py`.
"""
