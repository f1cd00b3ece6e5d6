"""`edgekit-console`: the live fleet in a terminal; or once, as text, JSON or a picture."""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgekit.config import NAME_PATTERN, MqttConfig
from edgekit.errors import BrokerError, ConfigError, EdgekitError, RuntimeUnavailable, UsageError

if TYPE_CHECKING:
    from edgekit_tui.app import Console
    from edgekit_tui.feed import Folder, Source

THEME_NAMES = ("edgekit", "edgekit-light", "edgekit-high-contrast", "edgekit-colour-blind")
"As in theme.py, which --help need not load."
PLACES = ("overview", "devices", "models", "events", "releases", "alerts")
NOTICES = ("bell", "osc9", "osc777", "none")
GC_THRESHOLDS = (20_000, 20, 100)
"A large fleet is a million objects without a cycle among them: looking for one must not stop the screen often."
SIZE = re.compile(r"(?P<width>[1-9]\d{0,3})x(?P<height>[1-9]\d{0,3})\Z")


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="edgekit-console",
        description="Watch a fleet of edgekit devices: latency, throughput, memory, and why each artifact runs.",
        epilog="exit codes: 0 ok, 1 no device was heard (--once, --snapshot), 2 usage, 3 settings, "
        "4 broker unreachable (--once, --snapshot), 5 internal, 130 interrupted",
    )
    link = parser.add_argument_group("broker")
    link.add_argument("--host", default="127.0.0.1", help="MQTT broker (default: %(default)s)")
    link.add_argument("--port", type=int, help="its port (default: 1883, with TLS 8883)")
    link.add_argument("--username")
    link.add_argument("--password-file", metavar="FILE", help="holds the password")
    link.add_argument("--tls", action="store_true", help="use TLS, checked against the system's authorities")
    link.add_argument("--ca-file", metavar="FILE", help="use TLS, checked against this authority")
    link.add_argument("--certificate-file", metavar="FILE", help="our own certificate (implies --tls)")
    link.add_argument("--key-file", metavar="FILE", help="the key of our certificate")
    link.add_argument("--site", help="show this site alone")
    link.add_argument("--replay", metavar="FILE", help="play a recording of 'edgekit collect --record' instead")
    link.add_argument("--speed", type=float, default=1.0, metavar="N", help="of the replay (default: %(default)g)")
    look = parser.add_argument_group("screen")
    look.add_argument("--alerts", metavar="FILE.toml", help="rules for alerts (default: built-in ones)")
    look.add_argument("--notify", default="bell", choices=NOTICES,
                      help="of a new alert: the bell, or the desktop's (default: %(default)s)")  # fmt: skip
    look.add_argument("--ascii", action="store_true", help="draw without Unicode")
    look.add_argument("--theme", default="edgekit", choices=THEME_NAMES, help="default: %(default)s")
    look.add_argument("--screen", default="overview", choices=PLACES, help="start here (default: %(default)s)")
    look.add_argument("--read-only", action="store_true", help="send no command to any device")
    look.add_argument("--open", metavar="DEVICE", help="open this device first")
    look.add_argument("--exit-after", type=float, metavar="SECONDS", help="leave by itself")
    once = parser.add_argument_group("without a terminal")
    once.add_argument("--once", action="store_true", help="print the fleet and exit")
    once.add_argument("--json", action="store_true", help="with --once: as JSON")
    once.add_argument("--snapshot", metavar="FILE.svg", help="draw the screen into an SVG picture and exit")
    once.add_argument("--size", default="120x40", metavar="WxH", help="of the picture, in cells (default: %(default)s)")
    once.add_argument("--wait", type=float, default=12.0, metavar="SECONDS",
                      help="how long to wait for every device's window (default: %(default)g)")  # fmt: skip
    web = parser.add_argument_group("in a browser")
    web.add_argument("--serve", metavar="[HOST:]PORT", help="serve the console to a browser (default host: 127.0.0.1)")
    web.add_argument("--serve-password-file", metavar="FILE", help="ask for this password; needed beyond loopback")
    parser.add_argument("--served", action="store_true", help=argparse.SUPPRESS)  # this is what a browser's tab runs
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the console and return its exit code."""
    args = build_parser().parse_args(argv)
    try:
        if args.serve:
            return serve(args, sys.argv[1:] if argv is None else argv)
        return run(args)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains at exit
        return 0
    except EdgekitError as error:
        if args.debug:
            raise
        print(f"edgekit-console: {error}", file=sys.stderr)
        return exit_code(error)


def run(args: argparse.Namespace) -> int:
    """What the options ask for. Raises UsageError, ConfigError, BrokerError."""
    size, config = check(args), mqtt_config(args)
    if importlib.util.find_spec("textual") is None:
        mend = f"{sys.executable} -m pip install 'edgekit-deploy[console]'"
        raise RuntimeUnavailable("textual", "not installed", mend)
    from edgekit_tui.alerts import DEFAULT, Alarm, read_rules
    from edgekit_tui.feed import Folder

    alarm = Alarm(read_rules(Path(args.alerts)) if args.alerts else DEFAULT)
    source: Source
    if args.replay:
        from edgekit_tui.replay import Replay

        at_once = bool(args.once or args.snapshot)
        source = replay = Replay(Path(args.replay), speed=float("inf") if at_once else args.speed)
        endpoint, send, clock, hold = Path(args.replay).name, None, replay.now_s, replay.pause
    else:
        from edgekit.telemetry.watch import Watcher

        source = watcher = Watcher(config, sites=[args.site] if args.site else None)
        endpoint, clock, hold = f"{config.host}:{config.port}", time.time, None
        send = None if args.read_only else watcher.send
    folder = Folder(source, endpoint=endpoint, alarm=alarm)
    if args.once or args.snapshot:
        return without_terminal(args, source, folder, endpoint=endpoint, size=size, clock=clock)
    from edgekit_tui.app import Console

    app = Console(
        ascii_only=args.ascii,
        theme=args.theme,
        start=args.screen,
        opening=args.open,
        exit_after_s=args.exit_after,
        notify=args.notify,
        send=send,
        alarm=alarm,
        hold=hold or (lambda _: None),
        clock=clock,
    )
    return watch(args, app, source, folder, clock)


def serve(args: argparse.Namespace, argv: Sequence[str]) -> int:
    """The console in a browser. Raises UsageError, ConfigError."""
    if args.once or args.snapshot or args.json or args.served:
        raise UsageError("--serve shows the live screen; leave out --once, --json and --snapshot")
    check(args, live=False)
    mqtt_config(args)
    for module, package in (("textual", "textual"), ("textual_serve", "textual-serve")):
        if importlib.util.find_spec(module) is None:
            mend = f"{sys.executable} -m pip install 'edgekit-deploy[browser]'"
            raise RuntimeUnavailable(package, "not installed", mend)
    from edgekit_tui import browser

    host, port = browser.address(args.serve, args.serve_password_file)
    password = browser.read_password(args.serve_password_file) if args.serve_password_file else None
    browser.serve([sys.executable, "-m", "edgekit_tui.main", *tab_options(argv)], host, port, password)
    return 0


def tab_options(argv: Sequence[str]) -> list[str]:
    """What a browser's tab is started with: the options given here but for those of the server."""
    words, kept = iter(argv), []
    for word in words:
        name, equals, _ = word.partition("=")
        if name in ("--serve", "--serve-password-file"):
            if not equals:
                next(words, None)
            continue
        kept.append(word)
    return [*kept, "--served"]


def without_terminal(
    args: argparse.Namespace,
    source: Source,
    folder: Folder,
    *,
    endpoint: str,
    size: tuple[int, int],
    clock: Callable[[], float],
) -> int:
    """The fleet once, as text, JSON or a picture."""
    from edgekit_tui import once
    from edgekit_tui.app import Console
    from edgekit_tui.draw import ASCII, UNICODE

    view = once.gather(source, folder, wait_s=args.wait, endpoint=endpoint, clock=clock)
    if args.snapshot:
        app = Console(ascii_only=args.ascii, theme=args.theme, start=args.screen, clock=lambda: view.now_s)
        once.snapshot(app, view, Path(args.snapshot), size=size, then=lambda app: app.open_named(args.open))
    if args.json:
        print(once.as_json(view))
    elif args.once and view.rows:
        width = shutil.get_terminal_size((160, 24)).columns
        print(once.as_table(view, width=width, glyphs=ASCII if args.ascii else UNICODE))
    if not view.rows:
        print(f"edgekit-console: no device was heard within {args.wait:g} s at {endpoint}", file=sys.stderr)
    return 0 if view.rows else 1


def watch(args: argparse.Namespace, app: Console, source: Source, folder: Folder, clock: Callable[[], float]) -> int:
    """The live screen, until it is left."""
    from edgekit_tui.news import Failed, Folded
    from edgekit_tui.worker import Feed

    feed = Feed(
        source,
        folder,
        post=lambda view: app.post_message(Folded(view)),
        failed=lambda error: app.post_message(Failed(error)),
        clock=clock,
        courtesy=app.courtesy,
    )
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    # leaves the terminal as it was; SIGHUP keeps its default: with the terminal gone there is nothing to restore
    signal.signal(signal.SIGTERM, lambda *_: app.ask_to_leave())
    feed.start()
    try:
        app.run()
    finally:
        feed.stop()
    if app.error is None:
        return app.return_code or 0
    if args.debug or isinstance(app.error, EdgekitError):
        raise app.error
    print(f"edgekit-console: internal error: {app.error!r}; --debug shows where", file=sys.stderr)
    return 5


def check(args: argparse.Namespace, *, live: bool = True) -> tuple[int, int]:
    """The picture's size. Raises UsageError for options that do not go together."""
    size = SIZE.match(args.size)
    if size is None:
        raise UsageError(f"--size {args.size}: write width x height in cells, such as 120x40")
    if args.json and not args.once:
        raise UsageError("--json needs --once")
    if not args.speed > 0:
        raise UsageError(f"--speed {args.speed:g}: must be more than 0")
    if not args.wait > 0:
        raise UsageError(f"--wait {args.wait:g}: must be more than 0 seconds")
    if args.exit_after is not None and not args.exit_after > 0:
        raise UsageError(f"--exit-after {args.exit_after:g}: must be more than 0 seconds")
    if args.site is not None and not re.match(NAME_PATTERN, args.site):
        raise UsageError(f"--site {args.site}: a site is 1 to 63 of a-z, 0-9, '_' and '-'")
    if live and not (args.once or args.snapshot or args.served or (sys.stdout.isatty() and sys.stdin.isatty())):
        raise UsageError("the live screen needs a terminal; --once prints the fleet, --snapshot FILE.svg draws it")
    return int(size["width"]), int(size["height"])


def mqtt_config(args: argparse.Namespace) -> MqttConfig:
    """The broker's settings. Raises ConfigError for a file that is not there."""
    for option in ("password_file", "ca_file", "certificate_file", "key_file"):
        path = getattr(args, option)
        if path is not None and not Path(path).is_file():
            raise ConfigError(path, None, f"no such file (--{option.replace('_', '-')})")
    tls = bool(args.tls or args.ca_file or args.certificate_file)
    return MqttConfig(
        host=args.host,
        port=args.port if args.port is not None else (8883 if tls else 1883),
        username=args.username,
        password_file=args.password_file,
        ca_file=args.ca_file,
        certificate_file=args.certificate_file,
        key_file=args.key_file,
        tls=tls,
    )


def exit_code(error: EdgekitError) -> int:
    """The exit code of an error, as everywhere in edgekit."""
    if isinstance(error, UsageError):
        return 2
    if isinstance(error, ConfigError):
        return 3
    return 4 if isinstance(error, BrokerError) else 5


if __name__ == "__main__":
    sys.exit(main())
