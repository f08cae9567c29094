"""A folder of this machine behind an SFTP server on loopback, for tests."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import paramiko


@contextmanager
def serving_sftp(folder: Path, home: Path) -> Iterator[str]:
    """Yield the URL of a server that takes the key in `home`, as a user's HOME has one."""
    key = paramiko.RSAKey.generate(2048)
    (home / ".ssh").mkdir(parents=True)
    key.write_private_key_file(str(home / ".ssh" / "id_rsa"))
    listening = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_accept, args=(listening, paramiko.RSAKey.generate(2048), key, folder), daemon=True).start()
    try:
        yield f"sftp://me@127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.close()


def _accept(listening: socket.socket, host: paramiko.PKey, known: paramiko.PKey, folder: Path) -> None:
    with suppress(OSError):
        while True:
            transport = paramiko.Transport(listening.accept()[0])
            transport.add_server_key(host)
            transport.set_subsystem_handler("sftp", paramiko.SFTPServer, _Files, folder)
            transport.start_server(event=threading.Event(), server=_Door(known))


class _Door(paramiko.ServerInterface):
    def __init__(self, known: paramiko.PKey) -> None:
        self.known = known

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_SUCCESSFUL if (username, key) == ("me", self.known) else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, number: int) -> int:
        return paramiko.OPEN_SUCCEEDED


class _Open(paramiko.SFTPHandle):
    def stat(self) -> Any:
        return paramiko.SFTPAttributes.from_stat(os.fstat(self.readfile.fileno()))


class _Files(paramiko.SFTPServerInterface):
    def __init__(self, server: paramiko.ServerInterface, folder: Path) -> None:
        super().__init__(server)
        self.folder = folder

    def _at(self, path: str) -> Path:
        return self.folder / path.strip("/")

    def _tried(self, call: Any) -> Any:
        try:
            found = call()
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)
        return paramiko.SFTP_OK if found is None else found

    def list_folder(self, path: str) -> Any:
        def listed() -> list[Any]:
            return [paramiko.SFTPAttributes.from_stat(one.stat(), one.name) for one in self._at(path).iterdir()]

        return self._tried(listed)

    def stat(self, path: str) -> Any:
        return self._tried(lambda: paramiko.SFTPAttributes.from_stat(self._at(path).stat()))

    lstat = stat

    def remove(self, path: str) -> Any:
        return self._tried(self._at(path).unlink)

    def posix_rename(self, old: str, new: str) -> Any:
        return self._tried(lambda: os.replace(self._at(old), self._at(new)))

    def mkdir(self, path: str, attributes: Any) -> Any:
        return self._tried(self._at(path).mkdir)

    def open(self, path: str, flags: int, attributes: Any) -> Any:
        def opened() -> _Open:
            mode = "r+b" if flags & (os.O_WRONLY | os.O_RDWR) else "rb"
            file = os.fdopen(os.open(self._at(path), flags, 0o600), mode, buffering=0)
            handle = _Open(flags)
            handle.filename, handle.readfile, handle.writefile = path, file, file
            return handle

        return self._tried(opened)
