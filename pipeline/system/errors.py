"""The exception for faults that a user can fix, and how commands report them."""

import errno
import io
import sys
import traceback
from collections.abc import Callable
from pathlib import Path


class UserError(Exception):
    """One sentence that says what is wrong and what to do. It ends a command without a traceback.

    Attributes:
        status: the exit status of the command: 2 for bad input, 1 for a run that failed (a NaN loss).
    """

    def __init__(self, sentence: str, *, status: int = 2) -> None:
        super().__init__(" ".join(sentence.split()))
        self.status = status


_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES}
_IN_THE_WAY = {errno.EEXIST, errno.ENOTDIR, errno.EISDIR}  # a file where a folder belongs, or the other way round


def first_line(error: BaseException) -> str:
    """The class of an error and the first line of its message."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def place(error: BaseException) -> str:
    """File and line of this project where an error came from, with a comma and a space behind; empty where it came from elsewhere."""
    package = Path(__file__).parents[1]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(package)]
    return f"{Path(frames[-1].filename).relative_to(package.parent)}, line {frames[-1].lineno}, " if frames else ""


def disk_sentence(error: Exception) -> str | None:
    """The sentence for a file that cannot be written or opened; None if the error is of another kind."""
    if isinstance(error, OSError) and error.errno in _IN_THE_WAY:
        return f"Something else lies in the place of a file or folder ({error}): move it elsewhere, then run the command again."
    # safetensors wraps the system's message in its own class of error.
    inside = any(text in str(error) for text in ("No space left", "File too large", "Read-only file", "Permission denied"))
    if (isinstance(error, OSError) and error.errno in _DISK) or inside:
        return f"A file cannot be used ({error}): make room or mend its permissions, then run the command again; it goes on from there."
    return None


def run_command(main: Callable[[list[str]], int | None]) -> None:
    """Runs a command's `main(argv)` and exits with its status. Of a `UserError` only the sentence is printed."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Characters that the encoding lacks are escaped, not dropped: without its minus sign a loss would read as a gain. Lines are
            # there when they are printed, also in a file or a pipe.
            stream.reconfigure(errors="backslashreplace", line_buffering=True)
    try:
        status = main(sys.argv[1:]) or 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        status = error.status
    except BrokenPipeError:
        status = 141
    except OSError as error:
        sentence = disk_sentence(error)
        if sentence is None:
            raise
        print(f"error: {sentence}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = 130
    sys.exit(status)
