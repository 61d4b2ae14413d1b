"""Where the fakes and the connector are; a spec imports this before either."""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
for folder in (HERE, os.path.join(HERE, "fakes"), os.path.join(ROOT, "examples")):
    if folder not in sys.path:
        sys.path.insert(0, folder)
