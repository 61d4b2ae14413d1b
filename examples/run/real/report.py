"""The table that the runs print, and what failed in it."""
import sys


class Report:
    """Rows of (case, columns, verdict); missing columns are the left ones; a verdict other than ok is explained below its row."""

    def __init__(self, columns, width=42):
        self.columns = columns
        self.width = width
        self.rows = 0
        self.failed = 0

    def head(self, title):
        print(f"\n{title}")
        print("  " + "request".ljust(self.width) + "".join(name.rjust(10) for name in self.columns) + "  verdict")

    def row(self, name, faults, values=()):
        values = (*[""] * (len(self.columns) - len(values)), *values)
        self.rows += 1
        self.failed += 1 if faults else 0
        print("  " + name.ljust(self.width) + "".join(str(value).rjust(10) for value in values) +
              ("  WRONG" if faults else "  ok"))
        for fault in faults:
            print("      " + fault)
        sys.stdout.flush()

    def note(self, text):
        print("      " + text)

    def end(self):
        """The last line and the exit status."""
        print(f"\n{self.rows - self.failed} passed, {self.failed} failed")
        return 1 if self.failed or self.rows == 0 else 0
