"""The tables, importable as ``attnrepro.tables.<table>.table`` and ``.measure``.

The folders lie in ``experiments/`` (or in the copy that the wheel carries). They are reached through this
package and never as a top-level ``experiments``, which a folder of that name in somebody's working directory
would shadow.
"""

from attnrepro.paths import experiments_dir

__path__ = [str(experiments_dir())]
