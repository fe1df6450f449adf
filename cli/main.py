"""Arguments in, exit code out. Nothing of vLLM or torch is imported until a command needs it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from kvconform import __version__
from kvconform.scenario.errors import HarnessError, UsageError

USAGE, HARNESS = 3, 4


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(
            f"{message[0].upper()}{message[1:]}. '{self.prog} --help' shows the usage."
        )


def parser() -> argparse.ArgumentParser:
    """The command line's grammar (a contract: gates are built on it)."""
    top = _Parser(
        prog="kvconform",
        description="Fault injection and conformance testing for vLLM V1 KV connectors.",
        epilog="Exit: 0 conformant, 1 a rule failed, 2 inconclusive, 3 usage or the target cannot "
        "be loaded, 4 harness error or nondeterminism, 5 the target killed or hung its process.",
    )
    top.add_argument("--version", action="version", version=f"kvconform {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)

    check = commands.add_parser("check", help="check a connector against the contract")
    check.add_argument(
        "target",
        metavar="TARGET",
        help="package.module:Class, a name from 'list targets', or a TOML file",
    )
    check.add_argument("--profile", help="profile to hold it to (see 'list profiles')")
    check.add_argument("--level", default="L3", help="L0 to L4, cumulative (default L3)")
    check.add_argument(
        "--faults", default="all", help="fault packages with commas, 'all' or 'none'"
    )
    check.add_argument("--shape", default="", help="fixed fields of the shape: tp=2,async=on,…")
    check.add_argument("--examples", type=int, default=200, help="runs of L3 (default 200)")
    check.add_argument("--budget", help="time for exploring: 90s, 5m, 1h")
    check.add_argument(
        "--seed", type=int, default=1, help="equal seeds explore equally (default 1)"
    )
    check.add_argument(
        "--policy",
        choices=("recompute", "fail", "both"),
        default="both",
        help="kv_load_failure_policy (default both)",
    )
    check.add_argument(
        "-n", dest="processes", default="1", metavar="N|auto", help="processes (default 1)"
    )
    _limits(check)
    check.add_argument(
        "--device", metavar="cpu|ascend-sim", help="what KV lies on (default: as the target says)"
    )
    check.add_argument("--role", help="kv_role of a bare class")
    check.add_argument("--extra", help="kv_connector_extra_config of a bare class, as JSON")
    check.add_argument(
        "--known", metavar="FILE", help="known failures, see 'kvconform known --help'"
    )
    check.add_argument("--strict", action="store_true", help="partial is not good enough")
    check.add_argument(
        "--tolerant", default="", metavar="RULES", help="read these tolerantly (see 'explain')"
    )
    check.add_argument("--coverage", action="store_true", help="show which fault met which state")
    check.add_argument("--report", default=".kvconform", help="folder for crash files")
    check.add_argument(
        "--json", metavar="FILE", help="write the JSON report; '-' for standard output"
    )
    check.add_argument("--junit", metavar="FILE", help="write JUnit XML")
    check.add_argument("--allure", metavar="DIR", help="write Allure results into this folder")

    replay = commands.add_parser("replay", help="play a crash file again")
    replay.add_argument("crash", metavar="ID|FILE")
    replay.add_argument("--against", metavar="TARGET", help="play it on another connector")
    replay.add_argument("--as-test", action="store_true", help="print it as a pytest file instead")

    _limits(replay)

    known = commands.add_parser(
        "known",
        help="make a known failure of a crash file",
        description="Add an entry to a file of known failures, for 'check --known FILE': the fault "
        "is excused until a day, for as long as its scenario still shows it.",
    )
    known.add_argument("crash", metavar="ID|FILE")
    known.add_argument("--reason", required=True, help="why it is put up with")
    known.add_argument("--issue", required=True, metavar="LINK", help="where it is followed up")
    known.add_argument("--expires", required=True, metavar="DAY", help="such as 2027-01-31")
    known.add_argument(
        "--file", default="known.toml", help="the file (default known.toml); made if need be"
    )

    e2e = commands.add_parser(
        "e2e",
        help="play scenes on real engines",
        description="Start real vLLM engines on the CPU, each in a process of its own, and compare "
        "every answer with that of an engine without a connector.",
    )
    e2e.add_argument(
        "target",
        metavar="TARGET",
        help="ascend, ascend-mooncake, nixl, mooncake, example, or as for check",
    )
    e2e.add_argument("--topology", choices=("pd", "store"), help="that one only")
    e2e.add_argument("--small", action="store_true", help="fewer scenes, of 16 requests each")
    e2e.add_argument("--scenes", default="", help="these only, with commas (see docs/e2e.md)")
    e2e.add_argument("--requests", type=int, metavar="N", help="of a scene (default 50)")
    e2e.add_argument("--seed", type=int, default=1, help="of the traffic (default 1)")
    e2e.add_argument("--role", help="kv_role of a bare class")
    e2e.add_argument("--extra", help="more kv_connector_extra_config, as JSON")
    e2e.add_argument("--logs", metavar="DIR", help="keep the engines' logs in this folder")
    e2e.add_argument("--json", metavar="FILE", help="write a report; '-' for standard output")

    matrix = commands.add_parser("matrix", help="check on every vLLM release; one table")
    matrix.add_argument("targets", nargs="*", metavar="TARGET", help="as for check")
    matrix.add_argument("--all", action="store_true", help="all known targets but the zoo")
    matrix.add_argument("--versions", default="", help="releases with commas (default all)")
    matrix.add_argument("--level", default="L3", help="of each check (default L3)")
    matrix.add_argument("--examples", type=int, default=200, help="of each check (default 200)")
    matrix.add_argument("--seed", type=int, default=1, help="of each check (default 1)")
    matrix.add_argument("--known", metavar="FILE", help="known failures, as for check")
    matrix.add_argument("--tolerant", default="", metavar="RULES", help="as for check")
    matrix.add_argument("-n", dest="processes", default="1", metavar="N|auto", help="processes")
    matrix.add_argument(
        "--report", default=".kvconform", help="crash files go to folders in this one"
    )
    matrix.add_argument(
        "--json", metavar="FILE", help="write the table as JSON; '-' for standard output"
    )

    selftest = commands.add_parser("selftest", help="hunt the mutants of the zoo")
    selftest.add_argument("--mutant", default="", metavar="M", help="these only, with commas")
    selftest.add_argument(
        "--sample", action="store_true", help="thirty of them, half a minute of CPU time for each"
    )
    selftest.add_argument("--shard", default="1/1", metavar="I/N", help="every N-th, from the I-th")
    selftest.add_argument("--seed", type=int, default=1, help="equal seeds hunt equally")
    selftest.add_argument("-n", dest="processes", default="1", metavar="N|auto", help="processes")
    selftest.add_argument(
        "--json", metavar="FILE", help="keep the results; a file that is there is gone on with"
    )

    explain = commands.add_parser("explain", help="explain a rule, or what is owed")
    explain.add_argument("rule", metavar="RULE", help="such as KVC-302, or SCH-04")

    listing = commands.add_parser("list", help="list what there is")
    listing.add_argument(
        "what", choices=("rules", "states", "faults", "profiles", "targets", "mutants")
    )
    listing.add_argument("--json", action="store_true")
    listing.add_argument("--markdown", action="store_true", help="rules, or states, as a page")

    doctor = commands.add_parser("doctor", help="show what is installed, and whether it works")
    doctor.add_argument(
        "--since", metavar="V", help="list what of the contract has changed since this vLLM"
    )
    doctor.add_argument("--until", metavar="V", help="… up to this one (default: the installed)")
    return top


def _limits(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--hang-limit", default="60s", metavar="TIME", help="without a sign of life (default 60s)"
    )
    command.add_argument(
        "--memory-limit", default="6g", metavar="SIZE", help="of a process (default 6g)"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: arguments; None: those of the process.

    Returns:
        The exit code.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None:  # who ends us ends our processes, and their folders, in good order
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        options = parser().parse_args(arguments)
        if options.command == "doctor":
            _fix_hash_seed(argv)
        return _command(options, ["kvconform", *arguments])
    except UsageError as error:
        print(f"kvconform: {error}", file=sys.stderr)
        return USAGE
    except HarnessError as error:
        print(f"kvconform: {error}", file=sys.stderr)
        return HARNESS
    except BrokenPipeError:
        # Whoever read our output has gone; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("kvconform: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        # Never 1: a gate would take that for a verdict.
        return _own_fault(error)


def _own_fault(error: Exception) -> int:
    if os.environ.get("KVC_TRACEBACK"):
        raise error
    frame = traceback.extract_tb(error.__traceback__)[-1]
    print(
        f"kvconform: kvconform itself failed: {type(error).__name__}: {error} (in {frame.name}, "
        f"{os.path.basename(frame.filename)} line {frame.lineno}). Set KVC_TRACEBACK=1 to see all "
        "of it, and please report it.",
        file=sys.stderr,
    )
    return HARNESS


def _command(options: argparse.Namespace, line: list[str]) -> int:
    match options.command:
        case "check":
            from kvconform.cli.check import check

            return check(options, line)
        case "e2e":
            from kvconform.cli.e2e import e2e

            return e2e(options, line)
        case "matrix":
            from kvconform.cli.matrix import matrix

            return matrix(options)
        case "selftest":
            from kvconform.cli.selftest import selftest

            return selftest(options)
        case "known":
            from kvconform.cli.known import add

            return add(options)
        case "replay":
            from kvconform.cli.replay import replay

            return replay(options)
        case "explain":
            from kvconform.cli.show import explain

            return explain(options.rule)
        case "list":
            from kvconform.cli.show import listing

            return listing(options.what, as_json=options.json, markdown=options.markdown)
        case _:
            from kvconform.cli.doctor import doctor

            return doctor(options.since, options.until)


def _fix_hash_seed(argv: Sequence[str] | None) -> None:
    """Start again with a fixed hash seed: the order of sets of request ids follows it."""
    if argv is None and os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-m", "kvconform", *sys.argv[1:]])
