"""The command line: one module per subcommand.

`options` and `requests` hold what several subcommands share, and `narration` is how `explain` reads. A module here may
import every other room.
"""
