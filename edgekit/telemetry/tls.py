"""TLS towards a broker, also while this machine does not know the time.

A certificate has dates, and a board without a clock of its own starts in 1970: every certificate would be "not yet
valid", and if the time comes through the same network, for ever. While nobody has set the clock, only what is certain
is asked: a certificate that had expired by the last time that this device has noted is refused, whatever else its dates
say. Everything else (who signed it, for which name) is checked as always.
"""

from __future__ import annotations

import ssl
import time
from datetime import datetime, timezone

from edgekit.config import MqttConfig
from edgekit.telemetry.clock import ClockFloor

_NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME. Source: OpenSSL, X509_VERIFY_PARAM_set_flags(3)."""


def client_context(config: MqttConfig, *, check_dates: bool = True) -> ssl.SSLContext:
    """How to greet the broker; its files are read anew. Raises OSError, ssl.SSLError."""
    context = ssl.create_default_context(cafile=config.ca_file)
    if config.certificate_file:
        context.load_cert_chain(config.certificate_file, config.key_file)
    if not check_dates:
        context.verify_flags = ssl.VerifyFlags(context.verify_flags | _NO_CHECK_TIME)
    return context


def expiry_problem(peer: ssl.SSLSocket, floor: ClockFloor) -> str | None:
    """Why the peer's certificate had expired in any case, where its dates were not checked; None when it had not."""
    ends = str((peer.getpeercert() or {}).get("notAfter", ""))
    surely_s = max(floor.unix_s, time.time())
    if ends and ssl.cert_time_to_seconds(ends) >= surely_s:
        return None
    now = datetime.fromtimestamp(surely_s, timezone.utc)
    return f"its certificate expired on {ends or 'an unknown day'}, and it is at least {now:%Y-%m-%d %H:%M} UTC"
