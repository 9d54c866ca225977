"""Where files of data sets lie, and how they get there. Cannot change a row, so it is no part of a code version."""
