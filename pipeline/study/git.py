"""Commits by their names, from git's own store. Nothing is checked out or written."""

from pathlib import Path

from pipeline.params import nearest
from pipeline.system.errors import UserError
from pipeline.system.provenance import check_git, git


def root_of(folder: Path) -> Path:
    """The top folder of the repository that a folder lies in. Raises UserError when there is none, or no git."""
    check_git(folder, needed=True)
    return Path(git("rev-parse", "--show-toplevel", cwd=folder, text=True).stdout.rstrip("\n"))


def commit_of(root: Path, revision: str) -> str:
    """The commit that a branch, a tag, a hash, an expression such as `main~2` or a DVC experiment names, in 40 digits.

    Raises:
        UserError: there is none; names the nearest branch, tag or experiment.
    """

    def said(*arguments: str) -> str:
        done = git(*arguments, cwd=root)
        return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else ""

    def parsed(name: str) -> str:
        return said("rev-parse", "--verify", "--quiet", name)

    def experiment(name: str, shown: str) -> str:
        """Of DVC's experiments of a name, the last one first: refs/exps/AB/CDEF.../NAME, after the commit that they started from."""
        return said("for-each-ref", "--sort=-creatordate", f"--format={shown}", f"refs/exps/*/*/{name}")

    # With the suffix first: the beginning of a hash may be that of a tree, too, and an expression such as `:/text` takes none.
    found = parsed(f"{revision}^{{commit}}")
    if not found and (named := parsed(revision) or experiment(revision, "%(objectname)").partition("\n")[0]):
        found = parsed(f"{named}^{{commit}}")
    if not found:
        names = said("for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags", "refs/remotes").split()
        names += experiment("*", "%(refname:lstrip=4)").split()
        more = "; this clone is shallow: run `git fetch --unshallow`" if said("rev-parse", "--is-shallow-repository") == "true" else ""
        raise UserError(f"There is no commit {revision!r} here{nearest(revision, names)}{more}.")
    return found
