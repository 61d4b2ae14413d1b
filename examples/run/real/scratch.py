"""A folder for logs and sockets of one run: removed when all passed, kept and named when not."""
import contextlib
import shutil
import sys
import tempfile


@contextlib.contextmanager
def scratch_folder(name, report):
    folder = tempfile.mkdtemp(prefix=f"baton-{name}-")
    try:
        yield folder
    except KeyboardInterrupt:
        print("\nstopped")
        shutil.rmtree(folder, ignore_errors=True)
        sys.exit(130)
    if report.failed:
        print(f"\nlogs are in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
