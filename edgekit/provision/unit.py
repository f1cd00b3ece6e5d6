"""The systemd units of guard and updater: hardened, and without what would keep accelerators from working."""

from __future__ import annotations

from pathlib import Path

NAME, UPDATER = "edgekit.service", "edgekit-updater.service"

_UNIT = """\
[Unit]
Description=edgekit guard: starts one of two slots and goes back when a new one fails
Wants=network-online.target
After=network-online.target time-sync.target
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={python} {root}/guard.pyz {root}
Restart=always
RestartSec=5
# The guard holds the deadlines: each release says how long it may take.
TimeoutStartSec=infinity
TimeoutStopSec=90
WatchdogSec=180
UMask=0027
{harden}
[Install]
WantedBy={wanted_by}
"""

_UPDATER = """\
[Unit]
Description=edgekit updater: brings what is signed for this device when it is told to
Wants=network-online.target
After=network-online.target time-sync.target edgekit.service
StartLimitIntervalSec=0

[Service]
Type=exec
# Through the link only to start: it goes on from the slot itself, so that a switch does not mix two releases.
Environment=PYTHONPATH={root}/active/site PYTHONNOUSERSITE=1 PYTHONSAFEPATH=1 PYTHONPYCACHEPREFIX={root}/cache
ExecStart={python} -m edgekit.cli.main update --follow --root {root}
Restart=always
RestartSec=15
TimeoutStopSec=60
# A download must never take the memory that the daemon serves from.
OOMScoreAdjust=500
UMask=0027
{harden}
[Install]
WantedBy={wanted_by}
"""

_USER_SERVICE = """\
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
"""

# Not set, with reason: PrivateDevices, DevicePolicy (GPUs, NPUs and USB accelerators are nodes of many names),
# MemoryDenyWriteExecute (runtimes compile kernels into memory), ProcSubset=pid (the probe reads /proc/cpuinfo).
_SYSTEM_SERVICE = """\
User={user}
SupplementaryGroups={groups}
CapabilityBoundingSet=
AmbientCapabilities=
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths={root}
ProtectHome={protect_home}
PrivateTmp=yes
PrivateMounts=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
RemoveIPC=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallErrorNumber=EPERM
"""

_OWN_THREADS = """\
# The daemon lowers its tolerant threads, and keeps a runtime's off the core of their caller.
SystemCallFilter=setpriority sched_setaffinity
"""


def system_unit(root: Path, *, python: str, user: str, groups: tuple[str, ...] = ()) -> str:
    """For the system's own systemd. `groups`: those of the device nodes (video, render, plugdev) that exist there."""
    harden = _harden(root, user, groups) + _OWN_THREADS
    return _UNIT.format(python=python, root=root, harden=harden, wanted_by="multi-user.target")


def user_unit(root: Path, *, python: str) -> str:
    """For `systemd --user`, without root: less can be taken away there."""
    return _UNIT.format(python=python, root=root, harden=_USER_SERVICE, wanted_by="default.target")


def system_updater(root: Path, *, python: str, user: str) -> str:
    """The updater beside the guard, as the same user, but without the device nodes."""
    return _UPDATER.format(python=python, root=root, harden=_harden(root, user, ()), wanted_by="multi-user.target")


def user_updater(root: Path, *, python: str) -> str:
    return _UPDATER.format(python=python, root=root, harden=_USER_SERVICE, wanted_by="default.target")


def _harden(root: Path, user: str, groups: tuple[str, ...]) -> str:
    homes = root.is_relative_to("/home") or root.is_relative_to("/root")
    return _SYSTEM_SERVICE.format(
        user=user, groups=" ".join(groups), root=root, protect_home="read-only" if homes else "yes"
    )
