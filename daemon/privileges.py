"""Gives up root's rights: whoever works on a home does so as the user to whom it belongs.

Files that root makes in a user's home would lock that user's own processes out, and links that the user puts
there could lead root to foreign files. So a process of root becomes that user before it opens anything, and
for good.
"""

from __future__ import annotations

import os
import pwd
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from state.errors import HomeUnreadable

_MAX_LINKS = 40

_ROOTS_PLACES = ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR")
"""Variables that name folders of the user whom this process no longer is."""


def become_home_user(home: Path, *, check_program: bool = True) -> None:
    """Become the user of `home` if this process is root and the home is not root's.

    `check_program` requires that the user may read the program, as a process that imports more of it needs.

    Raises:
        HomeUnreadable: this process cannot become that user, or the program is not readable for them.
    """
    if os.geteuid() != 0:
        return
    found = find_home_user(home)
    if found is None:
        return
    user, group = found
    name = str(user)
    try:
        entry = pwd.getpwuid(user)
    except KeyError:
        _switch_user(home, name, user, group, groups=[])
    else:
        name = entry.pw_name
        _switch_user(home, name, user, entry.pw_gid, groups=os.getgrouplist(name, entry.pw_gid))
        os.environ.update(HOME=entry.pw_dir, USER=name, LOGNAME=name)
    for variable in _ROOTS_PLACES:
        os.environ.pop(variable, None)
    if check_program:
        _require_readable_program(home, name)


def find_home_user(home: Path) -> tuple[int, int] | None:
    """Return the user and group of the first place on the way to `home` that is not root's.

    That user decides what the rest of the path leads to, so links count, and so does the nearest folder of a
    home that does not exist yet. None: only root decides.

    Raises:
        HomeUnreadable: the links on the way lead in a circle.
    """
    for found in _walk_path(home):
        if found.st_uid != 0:
            return found.st_uid, found.st_gid
    return None


def _walk_path(home: Path) -> Iterator[os.stat_result]:
    """Yield what is known of each place on the way to `home`, links themselves included."""
    waiting = list(reversed(home.absolute().parts))
    place, links = Path("/"), 0
    while waiting:
        part = waiting.pop()
        place = place.parent if part == ".." else place / part
        try:
            found = place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return
        yield found
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > _MAX_LINKS:
                raise HomeUnreadable(f"{home}: its links lead in a circle")
            waiting += reversed(place.readlink().parts)
            place = place.parent


def _switch_user(home: Path, name: str, user: int, group: int, *, groups: list[int]) -> None:
    try:
        os.setgroups(groups)
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
    except OSError as error:
        text = f"{home}: belongs to user {name}, as whom root cannot act here: {error.strerror}"
        raise HomeUnreadable(f"{text}; run this as that user") from error


def _require_readable_program(home: Path, name: str) -> None:
    for place in (Path(__file__).parent, Path(sys.prefix), Path(os.__file__).parent):
        if not os.access(place, os.R_OK | os.X_OK):
            text = f"{home}: belongs to user {name}, as whom root acts here, and who cannot read {place}"
            raise HomeUnreadable(f"{text}; give them read access, or install the program where they have it")
