"""Commits and their files, read from git's own store. Nothing is checked out or written."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import UserError
from pipeline.provenance import check_git, git


class Commit(NamedTuple):
    """A commit: 40 hexadecimal digits, ISO 8601 date of committing, first line of the message."""

    id: str
    date: str
    subject: str

    @property
    def short(self) -> str:
        return self.id[:10]


class Repository:
    """A git repository by its top folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def around(cls, folder: Path) -> Repository:
        """The repository that `folder` lies in. Raises UserError when there is none, or no git."""
        check_git(folder, needed=True)
        return cls(Path(git("rev-parse", "--show-toplevel", cwd=folder, text=True).stdout.rstrip("\n")))

    def commit(self, revision: str) -> Commit:
        """The commit that a branch, a tag, a hash, an expression such as `main~2` or a DVC experiment names.

        Raises:
            UserError: there is none; names the nearest branch, tag or experiment.
        """
        # With the suffix first: the beginning of a hash may be that of a tree, too, and an expression such as `:/text` takes none.
        found = self._run("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
        if not found:
            found = self._run("rev-parse", "--verify", "--quiet", revision) or self._experiments().get(revision)
            found = found and self._run("rev-parse", "--verify", "--quiet", f"{found.strip()}^{{commit}}")
        if not found:
            raise UserError(f"There is no commit {revision!r} here{self._hint(revision)}.")
        (commit,) = self._log("-1", found.strip())
        return commit

    def has_commits(self) -> bool:
        return self._run("rev-parse", "--verify", "--quiet", "HEAD") is not None

    def changed(self) -> bool:
        """Whether the working tree holds anything that its commit does not."""
        return bool(self._run("--no-optional-locks", "status", "--porcelain"))

    def files(self, commit: str) -> dict[str, str]:
        """Paths of all files at a commit, from the top folder, and the ids of their contents."""
        listed = self._run("ls-tree", "-r", "-z", "--full-tree", commit) or ""
        entries = (line.partition("\t") for line in listed.split("\0") if line)
        return {path: meta.split()[2] for meta, _, path in entries if meta.split()[1] == "blob"}

    def contents(self, ids: Iterable[str]) -> dict[str, bytes]:
        """Contents of files by their ids, all through one process."""
        wanted = list(dict.fromkeys(ids))
        if not wanted:
            return {}
        answer = git("cat-file", "--batch", cwd=self.root, input="".join(f"{id}\n" for id in wanted).encode()).stdout
        contents, place = {}, 0
        for id in wanted:
            line_end = answer.find(b"\n", place)
            header = answer[place : max(line_end, place)].split()
            if not header or header[-1] == b"missing":  # git ends early where it cannot fetch a missing file
                raise UserError("git does not hold all files of that commit (a partial clone?): run `git fetch --refetch`.")
            size = int(header[2])
            contents[id] = answer[line_end + 1 : line_end + 1 + size]
            place = line_end + 1 + size + 1
        return contents

    def newest_with_tables(self) -> str | None:
        """Short id of the newest commit, on any branch, that wrote a study's tables."""
        places = [f":(glob){top}tables/variants.csv" for top in ("", "reports/*/")]
        return (self._run("log", "--all", "-1", "--format=%h", "--diff-filter=AM", "--", *places) or "").strip() or None

    def _experiments(self) -> dict[str, str]:
        """Commits of DVC's experiments by name; of several with one name, the one that was made last."""
        listed = self._run("for-each-ref", "--sort=creatordate", "--format=%(refname)", "refs/exps") or ""
        # refs/exps/AB/CDEF.../NAME: between them stands the commit that the experiment started from.
        parts = [ref.split("/", 4) for ref in listed.split()]
        return {part[4]: "/".join(part) for part in parts if len(part) == 5 and len(part[2] + part[3]) == 40}

    def _hint(self, revision: str) -> str:
        names = (self._run("for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags", "refs/remotes") or "").split()
        names += self._experiments()
        near = difflib.get_close_matches(revision, names, n=1, cutoff=0.5)
        shallow = (self._run("rev-parse", "--is-shallow-repository") or "").strip() == "true"
        return (f"; the nearest is {near[0]!r}" if near else "") + (
            "; this clone is shallow: run `git fetch --unshallow`" if shallow else ""
        )

    def _log(self, *arguments: str) -> list[Commit]:
        shown = self._run("log", "--no-show-signature", "--format=%H%x00%cI%x00%s", *arguments) or ""
        return [Commit(*line.split("\0")) for line in shown.split("\n") if line]  # a subject may hold other ends of a line

    def _run(self, *arguments: str) -> str | None:
        """What git prints, or None where it fails."""
        done = git(*arguments, cwd=self.root)
        return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None
