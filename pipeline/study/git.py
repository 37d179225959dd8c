"""Commits by their names, from git's own store. Nothing is checked out or written."""

from __future__ import annotations

from pathlib import Path

from pipeline.params import nearest
from pipeline.system.errors import UserError
from pipeline.system.provenance import check_git, git


class Repository:
    """A git repository by its top folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def around(cls, folder: Path) -> Repository:
        """The repository that `folder` lies in. Raises UserError when there is none, or no git."""
        check_git(folder, needed=True)
        return cls(Path(git("rev-parse", "--show-toplevel", cwd=folder, text=True).stdout.rstrip("\n")))

    def commit(self, revision: str) -> str:
        """The commit that a branch, a tag, a hash, an expression such as `main~2` or a DVC experiment names, in 40 digits.

        Raises:
            UserError: there is none; names the nearest branch, tag or experiment.
        """
        # With the suffix first: the beginning of a hash may be that of a tree, too, and an expression such as `:/text` takes none.
        found = self._parsed(f"{revision}^{{commit}}")
        if not found and (named := self._parsed(revision) or self._experiment(revision, "%(objectname)").partition("\n")[0]):
            found = self._parsed(f"{named}^{{commit}}")
        if not found:
            names = self._run("for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags", "refs/remotes").split()
            names += self._experiment("*", "%(refname:lstrip=4)").split()
            shallow = self._run("rev-parse", "--is-shallow-repository") == "true"
            more = "; this clone is shallow: run `git fetch --unshallow`" if shallow else ""
            raise UserError(f"There is no commit {revision!r} here{nearest(revision, names)}{more}.")
        return found

    def _parsed(self, name: str) -> str:
        return self._run("rev-parse", "--verify", "--quiet", name)

    def _experiment(self, name: str, shown: str) -> str:
        """Of DVC's experiments of a name, the last one first: refs/exps/AB/CDEF.../NAME, after the commit that they started from."""
        return self._run("for-each-ref", "--sort=-creatordate", f"--format={shown}", f"refs/exps/*/*/{name}")

    def _run(self, *arguments: str) -> str:
        """What git prints, nothing where it fails."""
        done = git(*arguments, cwd=self.root)
        return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else ""
