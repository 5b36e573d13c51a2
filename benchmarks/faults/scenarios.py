"""The table of scenarios."""

from __future__ import annotations

from benchmarks.faults import hosts, kills, llm_kill_sweep, power_cuts, storage
from benchmarks.faults.scenario import Scenario
from benchmarks.faults.soak import scenario as soak

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="storage",
            fails="the disk while the log is written, and the log's files at rest",
            rate="one fault a life, at every operation and every page, or at each --every-th",
            must_hold="nothing that was acknowledged is lost, or an error names what is wrong",
            run=storage.run,
            summarize=storage.summarize,
            format=storage.format_table,
            find_obstacle=storage.find_obstacle,
        ),
        Scenario(
            name="power",
            fails="the power of a virtual machine that appends events",
            rate="one cut a life, after 20 to 400 acknowledged events",
            must_hold="every acknowledged event is in a log that verifies",
            run=power_cuts.run,
            summarize=power_cuts.summarize,
            format=power_cuts.format_table,
            find_obstacle=power_cuts.find_obstacle,
            add_arguments=power_cuts.add_arguments,
        ),
        Scenario(
            name="llm",
            fails="the daemon, by SIGKILL, while it buys answers; and the model, in nine ways",
            rate="one kill a run, at every crash point or each --every-th; faults at a third of the requests",
            must_hold="no answer of the log is bought again, each kill costs at most the calls under way, "
            "the cap holds after every event, and the run ends as the one that nobody killed",
            run=llm_kill_sweep.run,
            summarize=llm_kill_sweep.summarize,
            format=llm_kill_sweep.format_summary,
        ),
        Scenario(
            name="hosts",
            fails="links, SSH servers, machines and clocks while a job runs on a host",
            rate="one fault a job",
            must_hold="the result arrives and is right, the job ended exactly once and began again only "
            "where its runner died, every core is free and no file is left; or the error has its code",
            run=hosts.run,
            summarize=hosts.summarize,
            format=hosts.format_table,
            find_obstacle=hosts.find_obstacle,
        ),
        Scenario(
            name="kills",
            fails="the daemon, by SIGKILL, while it works on runs",
            rate="every 1.5 to 6 seconds, until the runs have ended",
            must_hold="every run ends, in the state of the one that nobody killed; nothing is lost",
            run=kills.run_kills,
            summarize=kills.summarize,
            format=kills.format_table,
            add_arguments=kills.add_arguments,
        ),
        Scenario(
            name="children",
            fails="the processes that the daemon starts, by SIGKILL: jails, judges, pools",
            rate="one every 0.5 to 2.5 seconds, until the runs have ended",
            must_hold="every run ends, none by its infrastructure; nothing is lost or doubled",
            run=kills.run_children,
            summarize=kills.summarize,
            format=kills.format_table,
            add_arguments=kills.add_arguments,
        ),
        Scenario(
            name="soak",
            fails="nothing: a week of the daemon in one process, in virtual time",
            rate="measured --intervals times",
            must_hold="memory, files, threads, WAL, log per event, start and queries grow by at most 5 %",
            run=soak.run,
            summarize=soak.summarize,
            format=soak.format_summary,
            judge=soak.judge,
            add_arguments=soak.add_arguments,
            draw=soak.draw,
        ),
    )
}
