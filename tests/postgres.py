"""A real PostgreSQL for tests, in a folder of its own: it refuses to run as root, so root lends it Debian's user."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

_FOLDERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def find_initdb() -> str | None:
    """Debian keeps it outside everyone's PATH."""
    return next((str(f / "initdb") for f in _FOLDERS if (f / "initdb").exists()), None) or shutil.which("initdb")


class PostgresServer:
    """The server, on loopback, without passwords but for the role `limited`."""

    def __init__(self) -> None:
        initdb = find_initdb()
        assert initdb is not None
        self._bin = Path(initdb).parent
        # Not below pytest's folder: that is its user's alone, and this server may be another's.
        self.folder = Path(tempfile.mkdtemp(prefix="edgekit-pg-"))
        self._as: list[str] = []
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            owner = pwd.getpwnam("postgres")
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
            self._as = ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._run("initdb", "--auth=trust", "--no-locale", "--username=edgekit", "--no-sync", "-D", str(self.data))
        self.start()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def address(self, schema: str = "public", *, user: str = "edgekit") -> str:
        """Of one database; a schema for each test, since a database has three hundred files."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/postgres?options=-csearch_path%3D{schema}"

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self.folder}"
        self._run("pg_ctl", "start", "-w", "-D", str(self.data), "-l", str(self.folder / "log"), "-o", options)

    def crash(self) -> None:
        """As a power cut would: nothing is flushed, every session is gone."""
        self._run("pg_ctl", "stop", "-m", "immediate", "-w", "-D", str(self.data))

    def sql(self, text: str, schema: str = "public") -> str:
        """The first column of the first row, or nothing; each statement is a transaction of its own."""
        import psycopg

        with psycopg.connect(self.address(schema), autocommit=True) as db:
            cursor = db.execute(text.encode())
            row = cursor.fetchone() if cursor.description else None
        return "" if row is None else str(row[0])

    def close(self) -> None:
        self._run("pg_ctl", "stop", "-m", "immediate", "-w", "-D", str(self.data), check=False)
        shutil.rmtree(self.folder)

    def _run(self, program: str, *words: str, check: bool = True) -> None:
        command = [*self._as, str(self._bin / program), *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", stdin=subprocess.DEVNULL)
        assert not check or done.returncode == 0, done.stderr + done.stdout
