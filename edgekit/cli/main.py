"""The command line: an explicit list of verbs, and the exit codes that are its contract."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence

from edgekit import __version__

VERBS: tuple[tuple[str, str], ...] = (
    ("probe", "what this machine is: memory, CPU, accelerators, runtimes"),
    ("doctor", "what is installed and really loads, and the command that mends each fault"),
    ("models", "the models edgekit knows"),
    ("boards", "the boards edgekit knows"),
    ("build", "make flash artifacts from a model's standard one and measure their accuracy"),
    ("bench", "measure artifacts and runtime settings on this machine"),
    ("select", "choose one within your limits, and say why not the others"),
    ("run", "the on-device daemon: selected, warmed up, answering over HTTP, reporting over MQTT"),
    ("infer", "one answer for an image, a sound, a text or an .npz"),
    ("release", "make, list, show and compare releases of a daemon's configuration"),
    ("slots", "a device's two slots: what each holds, which one runs, what was refused"),
    ("provision", "make a board, or a folder here, a device that runs a release and can go back"),
    ("keys", "the keys that sign a repository of releases"),
    ("repo", "publish releases as static files that devices trust by signature"),
    ("update", "on the device: take what the repository offers, if it may be taken, and wait for the verdict"),
    ("rollout", "a release over a fleet in waves, each judged by its telemetry against the devices without it"),
    ("rollback", "go back to the release before"),
    ("fleet", "the fleet as a table or JSON"),
    ("collect", "store every window of a fleet once, acknowledge it, and serve Prometheus"),
    ("sim", "devices that do not exist, reporting as real ones do"),
    ("broker", "an MQTT broker for trying out, or mosquitto with generated settings"),
    ("demo", "all of it on this machine, with real input"),
)
"""Each verb is a module of this package with `add_arguments(parser)` and `run(args) -> int`."""

EXTRAS = {
    "onnx": "build", "httptools": "serve", "PIL": "image", "amqtt": "broker", "tuf": "update",
    "cryptography": "sign", "onnxruntime": "onnx", "ai_edge_litert": "litert",
    "matplotlib": "report",
    "prometheus_client": "collect",
    "psycopg": "postgres",
}  # fmt: skip
"""Packages a verb may need -> the extra that brings them."""


def build_parser(wanted: str | None) -> argparse.ArgumentParser:
    """The parser; only the wanted verb's module is imported, so that help and errors stay fast."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,  # else --password SECRET would pass for --password-file
        prog="edgekit",
        description="Deploy one model well to many small machines: measure, choose with reasons, run warm, watch.",
        epilog="exit codes: 0 ok, 1 a truthful no, 2 usage, 3 config or catalog, 4 unreachable, "
        "5 device, artifact or runtime, 130 interrupted",
    )
    parser.add_argument("--version", action="version", version=f"edgekit {__version__}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, help_text in VERBS:
        text = help_text[:1].upper() + help_text[1:] + "."
        sub = verbs.add_parser(verb, help=help_text, description=text, allow_abbrev=False)
        if verb == wanted:
            importlib.import_module(f"edgekit.cli.{verb}").add_arguments(sub)
            sub.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code. No traceback reaches a user without --debug."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show "✓" must not stop the answer
    try:
        try:
            return _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()  # here, where a reader that went away is no fault; at exit Python would complain
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(arguments: list[str]) -> int:
    known = {verb for verb, _ in VERBS}
    wanted = next((word for word in arguments if word in known), None)
    args = build_parser(wanted).parse_args(arguments)
    from edgekit import errors  # deferred with the verb: help needs none of it

    try:
        return int(importlib.import_module(f"edgekit.cli.{args.verb}").run(args))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if args.debug or package not in EXTRAS:
            raise
        print(
            f"edgekit {args.verb}: {package} is not installed; to mend it: {install(EXTRAS[package])}", file=sys.stderr
        )
        return 5
    except KeyboardInterrupt:
        return 130
    except SystemExit:
        return 0  # so rich ends a process whose reader went away; a verb returns its code
    except errors.EdgekitError as error:
        if args.debug:
            raise
        print(f"edgekit {args.verb}: {error}", file=sys.stderr)
        return exit_code(error)


def install(extra: str) -> str:
    """The command that brings an extra into the Python that runs us."""
    return f"{sys.executable} -m pip install 'edgekit-deploy[{extra}]'"


def exit_code(error: Exception) -> int:
    """The exit code that stands for a kind of error (design: Command line)."""
    from edgekit import errors

    table: tuple[tuple[type[Exception], int], ...] = (
        (errors.NoUsableArtifact, 1),
        (errors.UsageError, 2),
        (errors.ConfigError, 3),
        (errors.BrokerError, 4),
        (errors.UnreachableError, 4),
        (errors.FetchError, 4),
    )
    return next((code for kind, code in table if isinstance(error, kind)), 5)


if __name__ == "__main__":
    sys.exit(main())
