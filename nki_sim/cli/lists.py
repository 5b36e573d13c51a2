"""Verbs that list what the simulator has: instructions and names, rules, constants, import paths."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import nki_sim
from nki_sim.cli.report_text import Report
from nki_sim.cli.verb import Verb
from nki_sim.errors import InputError
from nki_sim.harness import read_text


def _list_ops(options: argparse.Namespace, report: Report) -> int:
    from nki_sim import support

    del options
    report.update(support.describe_support())
    return 0


def _format_ops(report: Report, source: Path | None) -> Iterable[str]:
    from nki_sim import support

    del source
    return support.format_support(report)


def _list_rules(options: argparse.Namespace, report: Report) -> int:
    from nki_sim import rulebook

    del options
    report["rules"] = [asdict(rule) for rule in rulebook.collect_rules()]
    return 0


def _format_rules(report: Report, source: Path | None) -> Iterable[str]:
    from nki_sim import rulebook

    del source
    return rulebook.format_rules([rulebook.RuleEntry(**fields) for fields in report["rules"]])


def _add_constants_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--into", metavar="FILE", help="renew the table in a page that has one")


def _list_constants(options: argparse.Namespace, report: Report) -> int:
    from nki_sim import constants

    report["constants"] = [asdict(one) for one in constants.load_constants()]
    if options.into:
        page = Path(options.into)
        try:
            page.write_text(constants.update_page(read_text(page)), encoding="utf-8")
        except ValueError as error:
            raise InputError(f"{page} holds no table of constants: {error}") from error
    return 0


def _format_constants(report: Report, source: Path | None) -> Iterable[str]:
    from nki_sim import constants

    del source
    return constants.format_constants([constants.TargetConstant(**fields) for fields in report["constants"]])


def _report_path(options: argparse.Namespace, report: Report) -> int:
    del options
    report["path"] = str(Path(nki_sim.__file__).parent / "shims")
    return 0


OPS = Verb(
    name="ops",
    text="list what is supported, instruction by instruction and name by name",
    action=_list_ops,
    lines=_format_ops,
    keys=dict.fromkeys(("targets", "dtypes", "supported", "unsupported", "namespaces")),
    on_kernel=False,
)
RULES = Verb(
    name="rules",
    text="list the rules and errors with their codes, as a Markdown table",
    action=_list_rules,
    lines=_format_rules,
    keys={"rules": None},
    on_kernel=False,
)
CONSTANTS = Verb(
    name="constants",
    text="list the constants of the targets with their sources, as a Markdown table",
    action=_list_constants,
    options=_add_constants_options,
    lines=_format_constants,
    keys={"constants": None},
    on_kernel=False,
)
PATH = Verb(
    name="path",
    text="print the folder to put on PYTHONPATH so that kernels' imports work",
    action=_report_path,
    lines=lambda report, _: [report["path"]],
    keys={"path": None},
    on_kernel=False,
)
